// SPDX-License-Identifier: Apache-2.0
// The body of a request while it is read: grows with what comes, and counts among all (internal to server/).
//
// Threads: the connection's strand; the count is everybody's.
#pragma once

#include <atomic>
#include <boost/beast/core/buffer_traits.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional/optional.hpp>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "server/real_http_session.h"

namespace larder {

// Bodies up to this size are always taken: a server that is full of large ones still answers small questions.
inline constexpr std::uint64_t kSmallBodyBytes = 64u << 10;

// A body that grows with what comes, and not to what its head promises; without memory it fails and does not throw.
struct GrowingBody {
  using value_type = std::string;

  class Reader {
   public:
    template <bool is_request, class Fields>
    Reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, boost::system::error_code& error) { error = {}; }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      try {
        for (const auto buffer : boost::beast::buffers_range_ref(buffers)) {
          body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        }
      } catch (const std::bad_alloc&) {
        error = make_error_code(boost::system::errc::not_enough_memory);
        return 0;
      }
      return boost::beast::buffer_bytes(buffers);
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
  using reader = Reader;  // Beast's name
};

// The bytes of one body count in HttpCore::body_bytes while this lives: in the session that reads it, then in the
// request.
class BodyHold {
 public:
  explicit BodyHold(std::shared_ptr<HttpCore> core) : core_(std::move(core)) {}
  ~BodyHold() { core_->body_bytes.fetch_sub(bytes_, std::memory_order_relaxed); }
  BodyHold(const BodyHold&) = delete;
  BodyHold& operator=(const BodyHold&) = delete;

  // The body has `bytes` now. False: all bodies together have too many.
  [[nodiscard]] bool grow_to(std::uint64_t bytes) {
    const std::uint64_t more = bytes - bytes_;
    const std::uint64_t before = core_->body_bytes.fetch_add(more, std::memory_order_relaxed);
    bytes_ = bytes;
    return more == 0 || bytes <= kSmallBodyBytes || before + more <= core_->options.max_open_body_bytes;
  }

 private:
  const std::shared_ptr<HttpCore> core_;
  std::uint64_t bytes_ = 0;
};

}  // namespace larder
