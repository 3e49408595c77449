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
    LARDER_ASSIGN_OR_RETURN(const HttpReply reply, client_.request("GET", kRoute));
    if (reply.status != 200) return corrupt(refused("GET", reply).message());
    const Result<nlohmann::json> document = parse_json_object(reply.body);
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
    LARDER_ASSIGN_OR_RETURN(const HttpReply reply, client_.request(method, kRoute, body));
    return reply.status == 200 ? Status::ok() : refused(method, reply);
  }
  static Status refused(const char* method, const HttpReply& reply) {
    std::string words = reply.body.substr(0, 1000);
    std::replace(words.begin(), words.end(), '\n', ' ');
    while (words.ends_with(' ')) words.pop_back();
    const std::string hint = answer_hint(reply.status, "--admin-api-key-file FILE", "`larder serve` or SGLang");
    const std::string text = fmt::format("{} {}: HTTP {}: {}{}", method, kRoute, reply.status, words, hint);
    const auto says = [&words](std::string_view what) { return words.find(what) != std::string::npos; };
    if (says("not idle")) return overloaded(text);  // SGLang: "Reject attach: scheduler is not idle. #queue-req=1 ..."
    // `larder serve`: "another attach, detach or clear of the storage is in progress"; 400: a detach still is.
    if (reply.status == 409 || says("is being detached")) return conflict(text);
    // From 500 on, a proxy in front may have given up while the server goes on; `larder serve` itself says so with 400.
    const bool may_do_it_yet = reply.status >= 500 || says("may still be carried out");
    return may_do_it_yet ? unavailable(text) : invalid_argument(text);
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

// Is that neither what was there nor what we have brought? Then somebody else has attached it meanwhile. (SGLang shows
// what the last attach that succeeded has brought, so a part of its own replicas that we have changed is not seen
// here.)
bool is_of_others(const AttachedStorage& has, const AttachedStorage& before, const AttachedStorage& wanted) {
  const auto is_that = [&has](const AttachedStorage& one) {
    return is_same_storage(has, one) || (has.backend == one.backend && has.extra_config == one.extra_config);
  };
  return !is_that(before) && !is_that(wanted);
}

// It may do yet what it was asked for: what it has now says nothing.
bool is_open(const Status& answer) {
  return answer.code() == StatusCode::kDeadlineExceeded || answer.code() == StatusCode::kUnavailable;
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
    case End::kNotReached: return "not reached, nothing was changed";
    case End::kLeft: return server.status.is_ok() ? "left as others have it" : "refused, and left as others have it";
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
    put_all_back(i, wanted, report);
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
      if (has.status().code() != StatusCode::kCorrupt) server.end = End::kNotReached;
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

Status ReplicaSwitch::ask_for(StorageDoor& door, const AttachedStorage& wanted) {
  return wanted.backend.empty() ? door.detach_storage() : door.attach_storage(wanted);
}

Status ReplicaSwitch::change(StorageDoor& door, const AttachedStorage& wanted) {
  for (std::size_t tried = 1;; ++tried) {
    const Status status = ask_for(door, wanted);
    if (status.is_ok()) return status;
    if (status.code() == StatusCode::kOverloaded && wait_(tried)) continue;
    if (status.code() == StatusCode::kConflict) return status;  // what it has is, or will be, the work of others
    const Result<AttachedStorage> has = door.ask();             // the answer may have been lost, and not the request
    return has.is_ok() && has_become(*has, wanted) ? Status::ok() : status;
  }
}

// A detach keeps the policies that the attach has brought: what to ask for before it, if anything.
Result<std::optional<AttachedStorage>> ReplicaSwitch::policies_back(StorageDoor& door, const AttachedStorage& before) {
  if (!before.backend.empty()) return std::optional<AttachedStorage>();
  LARDER_ASSIGN_OR_RETURN(const AttachedStorage has, door.ask());
  AttachedStorage same = has;
  same.prefetch_policy = before.prefetch_policy;
  same.write_policy = before.write_policy;
  if (has.backend.empty() || same == has) return std::optional<AttachedStorage>();
  return std::optional<AttachedStorage>(std::move(same));
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

template <class Ask>
Status ReplicaSwitch::put_back(StorageDoor& door, const AttachedStorage& before, const Ask& ask) {
  LARDER_ASSIGN_OR_RETURN(const std::optional<AttachedStorage> policies, policies_back(door, before));
  if (policies) LARDER_RETURN_IF_ERROR(ask(*policies));
  return ask(way_back(door, before));
}

// A server does one change after the other: once it has taken the way back, it will not do the open one any more.
Result<End> ReplicaSwitch::put_open_back(StorageDoor& door, const AttachedStorage& before) {
  const auto ask_once = [&](const AttachedStorage& wanted) { return ask_for(door, wanted); };
  const auto is_under_way = [](const Status& status) {
    return status.code() == StatusCode::kOverloaded || status.code() == StatusCode::kConflict;
  };
  Status status = put_back(door, before, ask_once);
  for (std::size_t tried = 1; is_under_way(status) && wait_(tried); ++tried) {
    status = put_back(door, before, ask_once);  // with the policies that the change has brought meanwhile
  }
  LARDER_RETURN_IF_ERROR(status);
  LARDER_ASSIGN_OR_RETURN(const AttachedStorage has, door.ask());
  const bool is_as_before = has_become(has, before) && has.prefetch_policy == before.prefetch_policy &&
                            has.write_policy == before.write_policy;
  if (is_as_before) return End::kPutBack;
  return conflict("the change that was under way has changed its storage or policies");
}

// One that has answered: it has changed, or it has refused, and a part of its own replicas may have changed.
Result<End> ReplicaSwitch::put_changed_back(StorageDoor& door, const AttachedStorage& before,
                                            const AttachedStorage& wanted) {
  const auto change_to = [&](const AttachedStorage& storage) { return change(door, storage); };
  for (std::size_t tried = 1;; ++tried) {
    const Status status = put_back(door, before, change_to);
    if (status.is_ok()) return End::kPutBack;
    if (status.code() != StatusCode::kConflict || !wait_(tried)) return status;
    const Result<AttachedStorage> has = door.ask();  // the change of others may have ended
    if (has.is_ok() && is_of_others(*has, before, wanted)) return End::kLeft;
  }
}

// Nothing of ours is there, and the way back would undo what others do, or have done since it was asked.
bool ReplicaSwitch::is_left_to_others(StorageDoor& door, const Status& refused, const AttachedStorage& before,
                                      const AttachedStorage& wanted) {
  if (refused.code() == StatusCode::kConflict) return true;
  if (refused.is_ok() || is_open(refused)) return false;
  const Result<AttachedStorage> has = door.ask();
  return has.is_ok() && is_of_others(*has, before, wanted);
}

void ReplicaSwitch::put_all_back(std::size_t last, const AttachedStorage& wanted, SwitchReport& report) {
  for (std::size_t i = last + 1; i-- > 0;) {
    SwitchedServer& server = report.servers[i];
    if (server.end == End::kWasSo) continue;
    StorageDoor& door = *doors_[i];
    if (is_left_to_others(door, server.status, before_[i], wanted)) {
      server.end = End::kLeft;
      continue;
    }
    const Result<End> end =
        is_open(server.status) ? put_open_back(door, before_[i]) : put_changed_back(door, before_[i], wanted);
    server.end = end.value_or(End::kUnknown);
    if (!end.is_ok()) {
      server.status = Status(end.status().code(), "it had " + described(before_[i]) + ": " + end.status().message());
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
  if (!report.is_clean()) {
    return out + "A server could not be put back, see above: its storage is not what the others have.\n";
  }
  const auto has_one = [&report](End end) {
    return std::any_of(report.servers.begin(), report.servers.end(),
                       [end](const SwitchedServer& s) { return s.end == end; });
  };
  const bool is_overtaken = std::any_of(report.servers.begin(), report.servers.end(), [](const SwitchedServer& s) {
    return s.end == End::kLeft && s.status.is_ok();  // we have changed it, and others after us
  });
  if (is_overtaken) return out + "Each server has what it had, or what others have given it since.\n";
  if (!has_one(End::kPutBack)) return out + "Nothing was changed.\n";
  return out +
         (has_one(End::kLeft) ? "Each server that was changed has what it had.\n" : "Each server has what it had.\n");
}

}  // namespace larder
