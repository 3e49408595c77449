// The line between a rank and a metadata service on another machine, as the simulator has it: calls take no time, but
// can be lost, and the service can lose its memory.
//
//   request lost   nothing happened, and the caller does not know
//   answer lost    it happened, and the caller does not know
//   twice          a client that got no answer asked again: the same request arrives twice, the second answer counts
//   forgotten      the service began anew with nothing, before this call
//
// Threads: confined to one thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "storage/hf3fs/metadata_service.h"

namespace larder::sim {

enum class LineFault : std::uint8_t { kRequestLost, kAnswerLost, kTwice, kForgotten };
inline constexpr std::size_t kLineFaultCount = 4;

// Where the lines of all ranks end.
class SimService {
 public:
  using Make = std::function<std::shared_ptr<MetadataService>()>;
  explicit SimService(Make make) : make_(std::move(make)), now_(make_()) {}
  [[nodiscard]] MetadataService& now() { return *now_; }
  [[nodiscard]] const std::shared_ptr<MetadataService>& shared() const { return now_; }
  void forget() { now_ = make_(); }

 private:
  const Make make_;
  std::shared_ptr<MetadataService> now_;
};

class ServiceLine final : public MetadataService {
 public:
  // `fired` counts the calls that something happened to. Both outlive the line.
  ServiceLine(SimService& service, std::uint64_t& fired) : service_(service), fired_(fired) {}
  // The n-th call from now (1: the next), and the `count` - 1 after it.
  void fail_nth(std::uint64_t n, LineFault fault, std::uint64_t count = 1) {
    fail_from_ = calls_ + n, fail_until_ = fail_from_ + count, fault_ = fault;
  }
  void clear_fault() { fail_from_ = fail_until_ = 0; }

  [[nodiscard]] bool is_remote() const override { return true; }
  [[nodiscard]] Result<std::uint64_t> initialize(const MetadataNamespace& name_space, std::uint64_t pages) override {
    return call([&](MetadataService& far) { return far.initialize(name_space, pages); });
  }
  [[nodiscard]] Result<std::vector<std::vector<std::optional<PageRef>>>> find(std::span<const MetadataKeys> wanted,
                                                                              Nanos lease) override {
    return call([&](MetadataService& far) { return far.find(wanted, lease); });
  }
  [[nodiscard]] Result<std::vector<std::vector<Reserved>>> reserve(const MetadataSession& session,
                                                                   std::span<const ReserveItems> wanted,
                                                                   Nanos ttl) override {
    return call([&](MetadataService& far) { return far.reserve(session, wanted, ttl); });
  }
  [[nodiscard]] Result<std::vector<Status>> confirm(const ConfirmRequest& request) override {
    return call([&](MetadataService& far) { return far.confirm(request); });
  }
  [[nodiscard]] Result<std::uint64_t> remove(std::span<const ConfirmItem> items) override {
    return call([&](MetadataService& far) { return far.remove(items); });
  }
  [[nodiscard]] Result<std::uint64_t> clear(const MetadataNamespace& name_space, std::string_view prefix) override {
    return call([&](MetadataService& far) { return far.clear(name_space, prefix); });
  }
  [[nodiscard]] Result<std::map<MetadataNamespace, NamespaceStats>> stats() override {
    return call([](MetadataService& far) { return far.stats(); });
  }

 private:
  template <class Ask>
  auto call(const Ask& ask) -> decltype(ask(std::declval<MetadataService&>())) {
    ++calls_;
    if (calls_ < fail_from_ || calls_ >= fail_until_) return ask(service_.now());
    ++fired_;
    if (fault_ == LineFault::kRequestLost) return unavailable("simulated: the request is lost");
    if (fault_ == LineFault::kForgotten) service_.forget();
    auto answer = ask(service_.now());
    if (fault_ == LineFault::kTwice) return ask(service_.now());
    if (fault_ == LineFault::kAnswerLost) return unavailable("simulated: the answer is lost");
    return answer;
  }

  SimService& service_;
  std::uint64_t& fired_;
  std::uint64_t calls_ = 0, fail_from_ = 0, fail_until_ = 0;
  LineFault fault_ = LineFault::kRequestLost;
};

}  // namespace larder::sim
