// SPDX-License-Identifier: Apache-2.0
// `larder explain`: why does a prompt hit what it hits? A client of POST /explain.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file_system.h"
#include "base/http_client.h"
#include "cli/commands.h"
#include "engine/text_file.h"
#include "server/answer_hint.h"
#include "server/command_line.h"
#include "server/json_reader.h"
#include "server/key_file.h"
#include "server/text_table.h"

namespace larder {
namespace {

using PlainJson = nlohmann::json;

constexpr std::uint64_t kMaxInputBytes = 64ull << 20;

struct ExplainOptions {
  std::string url = "http://127.0.0.1:30000";
  std::string api_key, key_file, ca_file, text, input_ids, adapter, salt;
  bool as_json = false;
};

// "@path" -> the file's text; anything else is itself. kInvalidArgument: a file without text, too.
Result<std::string> text_or_file(const std::string& value) {
  if (!value.starts_with('@')) return value;
  const std::string path = value.substr(1);
  LARDER_ASSIGN_OR_RETURN(std::string text, read_text_file(real_file_system(), path, kMaxInputBytes));
  if (text.empty()) return invalid_argument(path + " is empty: a prompt is expected there");
  return text;
}

// "[1, 2, 3]", "1,2,3" or "1 2 3".
Result<PlainJson> parse_ids(std::string text) {
  if (text.find('[') == std::string::npos) {
    for (char& c : text) {
      if (c == ' ' || c == '\n' || c == '\t' || c == '\r') c = ',';
    }
    std::string joined;
    for (const char c : text) {
      if (c != ',' || (!joined.empty() && joined.back() != ',')) joined += c;
    }
    while (!joined.empty() && joined.back() == ',') joined.pop_back();
    text = "[" + joined + "]";
  }
  PlainJson ids = PlainJson::parse(text, nullptr, false);
  if (!ids.is_array() || ids.empty())
    return invalid_argument("--input-ids: an array of token ids is expected, as [1, 2, 3] or 1,2,3");
  return ids;
}

Result<PlainJson> request_of(const ExplainOptions& o) {
  PlainJson body = PlainJson::object();
  if (o.text.empty() == o.input_ids.empty())
    return invalid_argument("give --text or --input-ids (either as @file, too)");
  LARDER_ASSIGN_OR_RETURN(const std::string input, text_or_file(o.text.empty() ? o.input_ids : o.text));
  if (o.text.empty()) {
    LARDER_ASSIGN_OR_RETURN(body["input_ids"], parse_ids(input));
  } else {
    body["text"] = input;
  }
  if (!o.adapter.empty()) body["lora_path"] = o.adapter;
  if (!o.salt.empty()) body["cache_salt"] = o.salt;
  return body;
}

void print_explanation(const PlainJson& e) {
  const std::uint64_t page = e.at("page_size").get<std::uint64_t>();
  std::printf("prompt: %s tokens, %s whole pages of %s\n\n", count_text(e.at("prompt_tokens")).c_str(),
              count_text(e.at("prompt_pages")).c_str(), count_text(page).c_str());
  TextTable tiers({"restore point", "pages", "tokens"});
  std::string reasons;
  for (const char* tier : {"device", "host", "storage"}) {
    const PlainJson& point = e.at("restore").at(tier);
    const auto pages = point.at("pages").get<std::uint64_t>();
    tiers.add_row({tier == std::string_view("device") ? "device" : fmt::format("... and {}", tier), count_text(pages),
                   count_text(pages * page)});
    const auto reason = point.at("reason").get<std::string>();
    if (!reason.empty()) reasons += fmt::format("  {:<8} {}\n", tier, reason);
  }
  std::printf("%s\n", tiers.text().c_str());
  if (!reasons.empty()) std::printf("why it ends there:\n%s\n", reasons.c_str());
  TextTable pools({"pool", "component", "on device", "on host", "in storage", "alone it would reach"});
  for (const PlainJson& pool : e.at("pools")) {
    pools.add_row({pool.at("pool"), pool.at("component"), count_text(pool.at("device_pages")),
                   count_text(pool.at("host_pages")), count_text(pool.at("storage_pages")),
                   count_text(pool.at("restore_pages"))});
  }
  std::printf("%s\n%s\n", pools.text().c_str(), e.at("why").get<std::string>().c_str());
  if (e.at("storage_status") != "ok") {
    std::printf("storage could not be asked: %s\n", e.at("storage_status").get<std::string>().c_str());
  }
}

Status explain(const ExplainOptions& o) {
  LARDER_ASSIGN_OR_RETURN(const PlainJson body, request_of(o));
  LARDER_ASSIGN_OR_RETURN(const HttpUrl url, parse_http_url(o.url, o.ca_file));
  std::string key = o.api_key;
  for (const char* variable : {"LARDER_ADMIN_API_KEY", "LARDER_API_KEY"}) {
    LARDER_RETURN_IF_ERROR(fill_key(key, o.key_file, {"--api-key", variable}, EmptyVariable::kNoKey));
  }
  HttpClient client(url, std::chrono::seconds(60), key);
  LARDER_ASSIGN_OR_RETURN(
      const HttpReply reply,
      client.request("POST", "/explain", body.dump(-1, ' ', false, PlainJson::error_handler_t::replace)));
  const PlainJson answer = PlainJson::parse(reply.body, nullptr, false);
  if (reply.status != 200 || !answer.is_object()) {
    const std::string hint = answer_hint(reply.status, "--api-key-file FILE", "`larder serve` or `larder proxy`");
    return unavailable(fmt::format("POST /explain: HTTP {}: {}{}", reply.status, reply.body.substr(0, 1000), hint));
  }
  if (o.as_json) {
    std::printf("%s\n", answer.dump(2).c_str());
    return Status::ok();
  }
  try {
    print_explanation(answer);
  } catch (const PlainJson::exception& error) {
    return corrupt(fmt::format("the server's explanation has another shape: {}", error.what()));
  }
  return Status::ok();
}

}  // namespace

int explain_command(int argc, char** argv) {
  CLI::App app("Asks a running server what a prompt would hit now, in which tier, and why it stops there.",
               "larder explain");
  app.get_formatter()->column_width(30);
  ExplainOptions o;
  app.add_option("--url", o.url, "server to ask")->type_name("URL")->capture_default_str();
  app.add_option("--api-key", o.api_key, "the server's admin key, or its api key if it has no other")->type_name("KEY");
  app.add_option("--api-key-file", o.key_file, "holds that key; or LARDER_ADMIN_API_KEY, or LARDER_API_KEY")
      ->type_name("FILE");
  app.add_option("--cacert", o.ca_file, "to an https:// URL: who may have issued the certificate, PEM")
      ->type_name("FILE");
  app.add_option("--text", o.text, "the prompt as text, or @file")->type_name("TEXT|@FILE");
  app.add_option("--input-ids", o.input_ids, "the prompt as token ids, [1,2,3] or 1,2,3, or @file")
      ->type_name("IDS|@FILE");
  app.add_option("--lora-path", o.adapter, "adapter of the request")->type_name("NAME");
  app.add_option("--cache-salt", o.salt, "tenant salt of the request")->type_name("SALT");
  app.add_flag("--json", o.as_json, "print the server's JSON");
  app.footer("\nExit codes: 0 done; 1 the server cannot be asked; 2 wrong arguments, or no such file.");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  Status status = explain(o);
  if (app.count("--url") == 0) status = with_url_hint(status, "larder proxy: http://127.0.0.1:8080/larder");
  return status.is_ok() ? 0 : fail_command("larder explain", status);
}

}  // namespace larder
