// SPDX-License-Identifier: Apache-2.0
// --tenant-limits: the floors and ceilings of tenants (policy/tenant_limits.h) from a JSON or TOML file.
//
//   {"tenants": [{"name": "team-a", "salt": "a", "floor": "10%", "ceiling": "40%"},
//                {"name": "team-b", "salt_sha256": "9f86...", "host": {"floor": "4GiB"}},
//                {"name": "trials", "salt_prefix": "trial-", "ceiling": "20%", "device": {"ceiling": "5%"}}],
//    "others": {"ceiling": "30%"}}
//
// Each tenant has a name and one of salt, salt_sha256 (64 hexadecimal digits) and salt_prefix. floor and ceiling count
// for device and host, unless `device` or `host` says otherwise. Amounts are text: parse_tier_share().
//
// Threads: pure, but for the file. Errors: kNotFound, kUnavailable as the file system says; kInvalidArgument names the
// file, the tenant by its place or name, and the key.
#pragma once

#include <string>
#include <string_view>

#include "base/file_system.h"
#include "config/parse_tree.h"
#include "policy/tenant_limits.h"

namespace larder {

[[nodiscard]] Result<TenantLimits> load_tenant_limits(const std::string& path, FileSystem& files = real_file_system());
// source: what messages call it.
[[nodiscard]] Result<TenantLimits> read_tenant_limits(const Tree& tree, std::string_view source);

}  // namespace larder
