// SPDX-License-Identifier: Apache-2.0
// Who may call what: bearer keys, as SGLang checks them.
//
// | level           | admin key set          | only api key set   | neither |
// |-----------------|------------------------|--------------------|---------|
// | kOpen           | open                   | open               | open    |
// | kNormal         | api key, if one is set | api key            | open    |
// | kAdminOptional  | admin key              | api key            | open, to this machine only |
//
// Attaching and detaching storage can name directories to write to: without an admin key only this machine may, too.
// Threads: pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "engine/options.h"
#include "server/http_message.h"
#include "server/tls_files.h"

namespace larder {

enum class AuthLevel : unsigned char { kOpen, kNormal, kAdminOptional };

// authorization: the header's value, "Bearer <key>" (scheme in any case). Keys are compared in constant time.
[[nodiscard]] bool is_authorized(const Options& options, AuthLevel level, std::string_view authorization);

// authorization as above; `key` is not empty. Constant time, too.
[[nodiscard]] bool is_bearer_of(std::string_view key, std::string_view authorization);

// Nobody holds a key that would let them: then only requests from this machine are answered.
[[nodiscard]] bool is_for_loopback_only(const Options& options, AuthLevel level, bool wants_admin_key);

// One line of the log about an administrative request, answered or refused: who, what, how it ended, its id; and how
// many like it have no line. Those that are refused at the door go through a RefusalLog (server/refusal_log.h).
void log_audit(const HttpRequest& request, unsigned status, std::uint64_t untold = 0);

// Is `host` an address that only this machine reaches? By its text: "localhost", "127.x.x.x", "::1".
[[nodiscard]] bool is_loopback_host(std::string_view host);

// The files of TLS that `options` name.
[[nodiscard]] TlsFiles tls_files(const Options& options);

// kInvalidArgument: other machines reach `host`, no key is asked for, and nobody has said that this is meant.
[[nodiscard]] Status check_exposure(std::string_view host, bool has_key, bool is_meant);

}  // namespace larder
