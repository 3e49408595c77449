// SPDX-License-Identifier: Apache-2.0
#include "server/replica_switch.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/answer_hint.h"
#include "server/json_reader.h"
#include "server/masked_config.h"

namespace larder {
namespace {

using SwitchedServer = SwitchReport::Server;
using End = SwitchReport::End;

constexpr const char* kRoute = "/hicache/storage-backend";

class HttpStorageDoor final : public StorageDoor {
 public:
  HttpStorageDoor(std::string name, HttpUrl url, Nanos timeout, std::string admin_key)
      : name_(std::move(name)), client_(std::move(url), timeout, std::move(admin_key)) {}

  const std::string& name() const override { return name_; }

  Result<AttachedStorage> ask() override {
    const Result<HttpReply> reply = client_.request("GET", kRoute);
    if (!reply.is_ok()) return reply.status();
    if (reply->status != 200) return refused("GET", *reply);
    const Result<nlohmann::json> document = parse_json_object(reply->body);
    if (!document.is_ok()) return corrupt(fmt::format("GET {}: {}", kRoute, document.status().message()));
    JsonReader in(*document);
    AttachedStorage has;
    in.read("hicache_storage_backend", has.backend);
    in.read("hicache_storage_backend_extra_config", has.extra_config);
    in.read("hicache_storage_prefetch_policy", has.prefetch_policy);
    in.read("hicache_write_policy", has.write_policy);
    if (!in.is_ok()) return corrupt(fmt::format("GET {}: {}", kRoute, in.status().message()));
    return has;
  }
  Status attach_storage(const AttachedStorage& wanted) override {
    nlohmann::ordered_json body = {{"hicache_storage_backend", wanted.backend}};
    const auto add = [&body](const char* key, const std::string& text) {
      if (!text.empty()) body[key] = text;
    };
    add("hicache_storage_backend_extra_config_json", wanted.extra_config);
    add("hicache_storage_prefetch_policy", wanted.prefetch_policy);
    add("hicache_write_policy", wanted.write_policy);
    return send("PUT", dump_json(body));
  }
  Status detach_storage() override { return send("DELETE", {}); }

 private:
  Status send(const char* method, const std::string& body) {
    const Result<HttpReply> reply = client_.request(method, kRoute, body);
    if (!reply.is_ok()) return reply.status();
    return reply->status == 200 ? Status::ok() : refused(method, *reply);
  }
  static Status refused(const char* method, const HttpReply& reply) {
    std::string words = reply.body.substr(0, 1000);
    std::replace(words.begin(), words.end(), '\n', ' ');
    while (words.ends_with(' ')) words.pop_back();
    const std::string hint = answer_hint(reply.status, "--admin-api-key-file FILE", "`larder serve` or SGLang");
    const std::string text = fmt::format("{} {}: HTTP {}: {}{}", method, kRoute, reply.status, words, hint);
    // SGLang: "Reject attach: scheduler is not idle. #queue-req=1 ..."
    if (words.find("not idle") != std::string::npos) return overloaded(text);
    return unavailable(text);
  }

  const std::string name_;
  HttpClient client_;
};

std::string described(const AttachedStorage& storage) {
  if (storage.backend.empty()) return "no storage";
  const std::string config = masked_config(storage.backend, storage.extra_config).substr(0, 300);
  return fmt::format("storage '{}'{}", storage.backend, config.empty() ? "" : " with " + config);
}

bool is_file(const std::string& config) { return config.starts_with('@'); }

// As texts, or as JSON. Of a file the server knows what it said at the attach, and nobody whether it says so still.
bool is_same_config(const std::string& a, const std::string& b) {
  if (is_file(a) || is_file(b)) return false;
  if (a == b) return true;
  const auto left = nlohmann::json::parse(a, nullptr, false), right = nlohmann::json::parse(b, nullptr, false);
  return !left.is_discarded() && left == right;
}

bool is_same_storage(const AttachedStorage& has, const AttachedStorage& wanted) {
  return has.backend == wanted.backend &&
         (wanted.extra_config.empty() || is_same_config(has.extra_config, wanted.extra_config));
}

// Does a server that had another storage, or none, have this one now?
bool has_become(const AttachedStorage& has, AttachedStorage wanted) {
  if (has.extra_config == wanted.extra_config) wanted.extra_config.clear();
  return is_as_wanted(has, wanted);
}

// What stands against attaching `wanted` there.
Status refusal(const AttachedStorage& has, const AttachedStorage& wanted) {
  const bool may_be_same =
      has.backend == wanted.backend && is_file(wanted.extra_config) && has.extra_config == wanted.extra_config;
  return Status(StatusCode::kConflict,
                "it has " + described(has) + " attached" +
                    (may_be_same ? ", and whether that file says what it said is not known: detach that first; to "
                                   "change policies only, leave the extra configuration out"
                                 : ": detach that first"));
}

const char* word_of(const SwitchedServer& server) {
  switch (server.end) {
    case End::kUntouched: return "as it was";
    case End::kWasSo: return "was so already";
    case End::kChanged: return "done";
    case End::kPutBack: return server.status.is_ok() ? "put back" : "refused, and has what it had";
    case End::kUnknown: break;
  }
  return "NOT PUT BACK";
}

}  // namespace

std::unique_ptr<StorageDoor> http_storage_door(std::string name, HttpUrl url, Nanos timeout, std::string admin_key) {
  return std::make_unique<HttpStorageDoor>(std::move(name), std::move(url), timeout, std::move(admin_key));
}

bool is_as_wanted(const AttachedStorage& has, const AttachedStorage& wanted) {
  if (wanted.backend.empty()) return has.backend.empty();
  const auto agrees = [](const std::string& is, const std::string& should) { return should.empty() || is == should; };
  return is_same_storage(has, wanted) && agrees(has.prefetch_policy, wanted.prefetch_policy) &&
         agrees(has.write_policy, wanted.write_policy);
}

bool SwitchReport::is_clean() const {
  return std::none_of(servers.begin(), servers.end(), [](const SwitchedServer& s) { return s.end == End::kUnknown; });
}

SwitchReport ReplicaSwitch::attach_storage(const AttachedStorage& wanted) { return run(wanted); }
SwitchReport ReplicaSwitch::detach_storage() { return run({}); }

SwitchReport ReplicaSwitch::run(const AttachedStorage& wanted) {
  SwitchReport report;
  report.status = ask_all(wanted, report);
  if (!report.status.is_ok()) return report;
  for (std::size_t i = 0; i < doors_.size(); ++i) {
    SwitchedServer& server = report.servers[i];
    if (server.end == End::kWasSo) continue;
    server.status = change(*doors_[i], wanted);
    if (server.status.is_ok()) {
      server.end = End::kChanged;
      continue;
    }
    report.status = Status(server.status.code(), server.name + ": " + server.status.message());
    put_back(i, report);
    return report;
  }
  return report;
}

Status ReplicaSwitch::ask_all(const AttachedStorage& wanted, SwitchReport& report) {
  before_.clear();
  Status first;
  for (const auto& door : doors_) {
    SwitchedServer& server = report.servers.emplace_back();
    server.name = door->name();
    const Result<AttachedStorage> has = door->ask();
    before_.push_back(has.is_ok() ? *has : AttachedStorage{});
    if (!has.is_ok()) {
      server.status = has.status();
    } else if (is_as_wanted(*has, wanted)) {
      server.end = End::kWasSo;
    } else if (!wanted.backend.empty() && !has->backend.empty() && !is_same_storage(*has, wanted)) {
      server.status = refusal(*has, wanted);
    }
    if (first.is_ok() && !server.status.is_ok()) {
      first = Status(server.status.code(), server.name + ": " + server.status.message());
    }
  }
  return first;
}

Status ReplicaSwitch::change(StorageDoor& door, const AttachedStorage& wanted) {
  for (std::size_t tried = 1;; ++tried) {
    const Status status = wanted.backend.empty() ? door.detach_storage() : door.attach_storage(wanted);
    if (status.is_ok()) return status;
    if (status.code() == StatusCode::kOverloaded && wait_(tried)) continue;
    const Result<AttachedStorage> has = door.ask();  // the answer may have been lost, and not the request
    return has.is_ok() && has_become(*has, wanted) ? Status::ok() : status;
  }
}

// A detach keeps the policies that the attach has brought.
Status ReplicaSwitch::put_policies_back(StorageDoor& door, const AttachedStorage& before) {
  if (!before.backend.empty()) return Status::ok();
  const Result<AttachedStorage> has = door.ask();
  if (!has.is_ok()) return has.status();
  AttachedStorage same = *has;
  same.prefetch_policy = before.prefetch_policy;
  same.write_policy = before.write_policy;
  return has->backend.empty() || same == *has ? Status::ok() : change(door, same);
}

// What to ask of a server that is to have `before` again: policies alone, where it has that @file's storage still.
AttachedStorage ReplicaSwitch::way_back(StorageDoor& door, AttachedStorage before) {
  if (!is_file(before.extra_config)) return before;
  const Result<AttachedStorage> has = door.ask();
  if (has.is_ok() && has->backend == before.backend && has->extra_config == before.extra_config) {
    before.extra_config.clear();
  }
  return before;
}

void ReplicaSwitch::put_back(std::size_t last, SwitchReport& report) {
  for (std::size_t i = last + 1; i-- > 0;) {
    SwitchedServer& server = report.servers[i];
    if (server.end == End::kWasSo) continue;
    // Also the one that has refused: a part of its own replicas may have changed.
    Status status = put_policies_back(*doors_[i], before_[i]);
    if (status.is_ok()) status = change(*doors_[i], way_back(*doors_[i], before_[i]));
    server.end = status.is_ok() ? End::kPutBack : End::kUnknown;
    if (!status.is_ok()) {
      server.status = Status(status.code(), "it had " + described(before_[i]) + ": " + status.message());
    }
  }
}

std::string switch_text(const SwitchReport& report) {
  std::string out;
  for (const SwitchedServer& server : report.servers) {
    out += fmt::format("{}: {}{}{}\n", server.name, word_of(server), server.status.is_ok() ? "" : ": ",
                       server.status.message());
  }
  if (report.status.is_ok()) return out;
  return out + (report.is_clean()
                    ? "Each server has what it had.\n"
                    : "A server could not be put back, see above: its storage is not what the others have.\n");
}

}  // namespace larder
