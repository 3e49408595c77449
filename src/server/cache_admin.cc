// SPDX-License-Identifier: Apache-2.0
#include "server/cache_admin.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/request_metrics.h"
#include "server/api_error.h"
#include "server/json_reader.h"
#include "server/json_text.h"

namespace larder {
namespace {

constexpr double kMaxWaitSeconds = 3600;                   // of ?timeout=
constexpr Nanos kWaitSlice = std::chrono::seconds(1);      // the longest inside the scheduler, so that a stop is prompt
constexpr Nanos kStorageLimit = std::chrono::seconds(60);  // for opening, draining or clearing a backend
constexpr std::string_view kFlushed =
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the "
    "operation will not be performed.)\n";
// SGLang's line, and who else is concerned.
constexpr std::string_view kCleared =
    "Hierarchical cache storage backend cleared.\nEvery page of the store is dropped: of all models, adapters and "
    "tenants, also what other servers have stored there.\n";

// False: another call has its turn. A turn ends with this object, also when an exception ends the call.
class OneAtATime {
 public:
  explicit OneAtATime(std::atomic<bool>& is_taken) : taken_(is_taken.exchange(true) ? nullptr : &is_taken) {}
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;
  ~OneAtATime() {
    if (taken_ != nullptr) taken_->store(false);
  }
  explicit operator bool() const { return taken_ != nullptr; }

 private:
  std::atomic<bool>* const taken_;
};

// In text, as clients of SGLang expect it. What the status says may repeat the request.
HttpResponse storage_error(std::string_view what, const Status& status) {
  return text_response(400, fmt::format("{}{}\n", what, cut_text(status.message(), kMostErrorBytes)));
}

HttpResponse storage_is_busy() {
  return error_response(409,
                        "another attach, detach or clear of the storage is in progress: try again when it has ended");
}

Nanos nanos_of(double seconds) { return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(seconds)); }

}  // namespace

CacheAdmin::CacheAdmin(Scheduler& scheduler, Clock& clock) : scheduler_(scheduler), clock_(clock) {
  set_storage_name(scheduler.options().hicache_storage_backend);
}

// Calls `attempt(limit)` in slices until it is not kDeadlineExceeded, `seconds` are over, or the server stops.
template <class Attempt>
Status CacheAdmin::wait_in_slices(double seconds, const Attempt& attempt) {
  const TimePoint end = clock_.now() + nanos_of(seconds);
  for (bool is_first = true;; is_first = false) {
    const Nanos left = end - clock_.now();
    const Status status = attempt(std::clamp(left, Nanos{0}, kWaitSlice));
    // A conflict with the slice before, which a busy scheduler has not ended yet, is a wait like any other.
    const bool is_waiting =
        status.code() == StatusCode::kDeadlineExceeded || (!is_first && status.code() == StatusCode::kConflict);
    if (!is_waiting || left <= kWaitSlice) return status;
    if (is_stopping_.load(std::memory_order_relaxed)) return cancelled("the server is stopping");
  }
}

HttpResponse CacheAdmin::flush(const HttpRequest& request) {
  const Result<double> seconds = query_number(request, "timeout", 0, kMaxWaitSeconds);
  if (!seconds.is_ok()) return error_response(seconds.status());
  const OneAtATime turn(is_flushing_);
  if (!turn) return text_response(400, "Another flush_cache is already in progress.");
  const Status status = wait_in_slices(*seconds, [&](Nanos limit) { return scheduler_.flush(limit); });
  if (status.is_ok()) return text_response(200, kFlushed);
  if (status.code() != StatusCode::kDeadlineExceeded) return text_response(400, status.message());
  return text_response(400, *seconds > 0 ? "Timed out waiting for idle state." : "Flush cache failed.\n");
}

HttpResponse CacheAdmin::quiesce(const HttpRequest& request) {
  const Result<double> seconds = query_number(request, "timeout", 60, kMaxWaitSeconds);
  if (!seconds.is_ok()) return error_response(seconds.status());
  const OneAtATime turn(is_quiescing_);
  if (!turn) return error_response(409, "another quiesce is in progress");
  const Status status = wait_in_slices(*seconds, [&](Nanos limit) { return scheduler_.quiesce(limit); });
  if (!status.is_ok()) return error_response(status);
  return json_response(R"({"status":"ok"})");
}

HttpResponse CacheAdmin::storage_backend(const HttpRequest& request) {
  if (request.method == "PUT" || request.method == "DELETE") {
    // One that hangs in opening a store must not take all threads of the routes.
    const OneAtATime turn(is_switching_);
    if (!turn) return storage_is_busy();
    return request.method == "PUT" ? attach(request) : detach();
  }
  const StorageView view = scheduler_.storage();
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  return json_response(dump_json({{"hicache_storage_backend", text_or_null(view.backend)},
                                  {"hicache_storage_backend_extra_config", text_or_null(view.extra_config)},
                                  {"hicache_storage_prefetch_policy", view.prefetch_policy},
                                  {"hicache_write_policy", view.write_policy}}));
}

HttpResponse CacheAdmin::attach(const HttpRequest& request) {
  Result<nlohmann::json> document = parse_json_object(request.body);
  if (!document.is_ok()) return error_response(document.status());
  JsonReader in(*document);
  AttachRequest wanted;
  in.read("hicache_storage_backend", wanted.backend);
  in.read("hicache_storage_backend_extra_config_json", wanted.extra_config);
  in.read("hicache_storage_prefetch_policy", wanted.prefetch_policy);
  in.read("hicache_write_policy", wanted.write_policy);
  in.read("hicache_storage_replace", wanted.replace);
  in.read("hicache_storage_probe", wanted.probe);
  if (in.is_ok() && wanted.backend.empty()) in.fail_type("hicache_storage_backend", "the name of a backend");
  if (!in.is_ok()) return error_response(in.status());
  const Status status = scheduler_.attach_storage(wanted, kStorageLimit);
  if (!status.is_ok()) return storage_error("Failed to attach HiCache storage backend.\n", status);
  set_storage_name(wanted.backend);
  return text_response(200, "HiCache storage backend attached.\nAttached HiCache storage backend successfully.\n");
}

HttpResponse CacheAdmin::detach() {
  const Status status = scheduler_.detach_storage(kStorageLimit);
  if (!status.is_ok()) return storage_error("Failed to detach HiCache storage backend.\n", status);
  set_storage_name("");
  return text_response(200, "HiCache storage backend detached.\nDetached HiCache storage backend successfully.\n");
}

HttpResponse CacheAdmin::clear_storage() {
  const OneAtATime turn(is_switching_);
  if (!turn) return storage_is_busy();
  const Status status = scheduler_.clear_storage(kStorageLimit);
  if (!status.is_ok()) return storage_error("", status);
  return text_response(200, kCleared);
}

void CacheAdmin::set_storage_name(const std::string& backend) {
  LockGuard guard(storage_mutex_);
  storage_name_ = backend.empty() ? std::string{} : storage_class_name(backend);
}

std::string CacheAdmin::storage_name() {
  LockGuard guard(storage_mutex_);
  return storage_name_;
}

}  // namespace larder
