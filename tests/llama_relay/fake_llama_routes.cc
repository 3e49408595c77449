// SPDX-License-Identifier: Apache-2.0
// What FakeLlamaServer is asked, and how it answers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "base/file_system.h"
#include "server/json_reader.h"
#include "tests/llama_relay/fake_llama_server.h"

namespace larder::llama::relay_test {
namespace {

using Json = nlohmann::json;

constexpr TokenId kBegin = 256;
constexpr int kMostLevels =
    1000;  // more than the proxy reads, as with the real one; of far more a copy ends the process

// What llama-server and its clients know, and no more.
const std::set<std::string> kFields = {"prompt",
                                       "messages",
                                       "system",
                                       "n_predict",
                                       "max_tokens",
                                       "cache_prompt",
                                       "n_cache_reuse",
                                       "id_slot",
                                       "temperature",
                                       "top_k",
                                       "samplers",
                                       "ignore_eos",
                                       "n_probs",
                                       "return_tokens",
                                       "stream",
                                       "n",
                                       "model",
                                       "cache_salt",
                                       "add_generation_prompt",
                                       "lora"};
const std::set<std::string> kPrefillFields = {"prompt", "n_predict", "cache_prompt", "n_cache_reuse", "id_slot"};

bool is_too_deep(std::string_view text) {
  int levels = 0;
  for (const char c : text) {
    if (c == ']' || c == '}') --levels;
    if ((c == '[' || c == '{') && ++levels > kMostLevels) return true;
  }
  return false;
}

std::set<std::string> names_of(const Json& body) {
  std::set<std::string> names;
  for (const auto& item : body.items()) names.insert(item.key());
  return names;
}

void respond(ReplyStream& reply, const Json& body, unsigned status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = body.dump();
  reply.respond(std::move(response));
}

void refuse(ReplyStream& reply, unsigned status, const std::string& why) {
  respond(reply, {{"error", {{"code", status}, {"message", why}}}}, status);
}

// The answer has begun, and its end never comes.
void drop(ReplyStream& reply) {
  reply.begin({});
  (void)reply.write("{");
}

std::pair<TokenId, double> token_of(const std::vector<float>& logits) {
  std::uint64_t hash = 14695981039346656037u;
  for (const float logit : logits) hash = (hash ^ static_cast<std::uint64_t>((logit + 1) * 1e6f)) * 1099511628211u;
  return {static_cast<TokenId>('a' + hash / 7 % 26), -static_cast<double>(hash % 9973) / 9973};
}

std::string text_of(std::span<const TokenId> tokens) {
  std::string text;
  for (const TokenId token : tokens) text += static_cast<char>(token);
  return text;
}

std::string chat_text(const Json& body, bool& has_media) {
  std::string text;
  if (body.contains("system")) text = "<system>" + body["system"].get<std::string>() + "\n";
  for (const Json& message : body.at("messages")) {
    text += "<" + message.at("role").get<std::string>() + ">";
    for (const Json& part : message.at("content").is_array() ? message["content"] : Json::array({message["content"]})) {
      has_media = has_media || (part.is_object() && part.value("type", "") != "text");
      text += part.is_object() ? part.value("text", "") : part.get<std::string>();
    }
    text += "\n";
  }
  return body.value("add_generation_prompt", true) ? text + "<assistant>" : text;
}

}  // namespace

Tokens tokens_of_text(std::string_view text) {
  Tokens tokens = {kBegin};
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

Tokens expected_answer(const BlobGeometry& geometry, const Tokens& prompt, std::size_t count) {
  blob_test::FakeSequenceHost host(geometry);
  auto logits = host.decode(0, 0, prompt);
  Tokens out;
  for (auto position = static_cast<std::uint32_t>(prompt.size()); out.size() < count; ++position) {
    EXPECT_TRUE(logits) << logits.status().to_string();
    if (!logits) return out;
    out.push_back(token_of(*logits).first);
    logits = host.decode(0, position, std::span(&out.back(), 1));
  }
  return out;
}

// With or without a scheme.
bool FakeLlamaServer::lets_in(const HttpRequest& request) const {
  if (settings_.key.empty() || request.path == "/health") return true;
  std::string key = request.authorization;
  const std::string* second = find_field(request.fields, "X-Api-Key");
  if (key.empty() && second != nullptr) key = *second;
  return key == settings_.key || key == "Bearer " + settings_.key;
}

void FakeLlamaServer::serve(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
  ReplyStream reply(exchange);
  if (!lets_in(request)) return refuse(reply, 401, "Invalid API Key");
  if (request.path != "/props" && request.path != "/health") wake();
  if (request.method == "GET") return tell(request, reply);
  if (is_too_deep(request.body) || !check_json_values(request.body).is_ok()) {
    return refuse(reply, 400, "too much JSON");
  }
  const Json body = Json::parse(request.body, nullptr, false);
  if (request.path == "/lora-adapters") {
    set_adapters(body);
    return respond(reply, {{"success", true}});
  }
  if (!body.is_object()) return refuse(reply, 400, "no JSON object");
  const std::string& path = request.path;
  if (path == "/completion") return complete(body, Form::kCompletion, reply);
  if (path == "/v1/completions") return complete(body, Form::kText, reply);
  if (path == "/v1/chat/completions") return complete(body, Form::kChat, reply);
  if (path == "/v1/messages") return complete(body, Form::kMessages, reply);
  if (path.starts_with("/slots/")) return act_on_slot(request, body, reply);
  if (path == "/tokenize") {
    const bool is_right = names_of(body) == std::set<std::string>{"add_special", "content", "parse_special"};
    if (!is_right) complain("/tokenize: " + body.dump());
    return respond(reply, {{"tokens", tokens_of_text(body.value("content", ""))}});
  }
  bool has_media = false;
  if (path == "/apply-template") return respond(reply, {{"prompt", chat_text(body, has_media)}});
  refuse(reply, 404, "no such route");
}

void FakeLlamaServer::tell(const HttpRequest& request, ReplyStream& reply) {
  if (!wait_while_held("get", &reply)) return;
  if (request.path == "/health") return respond(reply, {{"status", "ok"}});
  if (request.path == "/lora-adapters") {
    return begin("adapters") ? refuse(reply, 500, "not today") : respond(reply, adapters());
  }
  if (request.path != "/props") return refuse(reply, 404, "no such route");
  if (begin("props")) return refuse(reply, 500, "not today");
  respond(reply, {{"default_generation_settings", {{"n_ctx", settings_.context}}},
                  {"total_slots", settings_.slots},
                  {"model_path", settings_.model_path},
                  {"build_info", settings_.build},
                  {"media_marker", instance()},
                  {"is_sleeping", is_sleeping()}});
}

void FakeLlamaServer::act_on_slot(const HttpRequest& request, const Json& body, ReplyStream& reply) {
  const auto found = request.query.find("action");
  const std::string action = found == request.query.end() ? "" : found->second;
  const std::string name = body.value("filename", "");
  const bool is_erase = action == "erase";
  const std::uint32_t number =
      static_cast<std::uint32_t>(std::stoul(request.path.substr(std::string("/slots/").size())));
  const std::set<std::string> expected = is_erase ? std::set<std::string>{} : std::set<std::string>{"filename"};
  const bool is_right = (is_erase || action == "save" || action == "restore") && names_of(body) == expected &&
                        (is_erase || !name.empty()) && name.find('/') == name.npos && number < settings_.slots;
  if (!is_right) {
    complain("a slot action that is none: " + request.target + " " + body.dump());
    return refuse(reply, 400, "Invalid action");
  }
  const std::optional<Fault> fault = begin(action);
  const auto slot = take_slot(number, {}, reply);
  if (!slot) return;
  if (action != "restore") (void)wait_while_held(action, nullptr);
  const std::string path = join_path(settings_.slot_directory, name);
  bool is_done = fault != Fault::kDrop && fault != Fault::kRefuse;
  if (action == "save" && fault != Fault::kDrop) is_done = save(*slot, path, fault) && is_done;
  if (action == "restore" && fault != Fault::kDrop) is_done = restore(*slot, path) && is_done;
  if (is_erase ? is_done : action == "restore" && !is_done && fault != Fault::kDrop) {
    LockGuard guard(mutex_);
    cut(*slot, 0);
  }
  give_slot(*slot, reply);
  if (fault == Fault::kDrop) return drop(reply);
  if (!is_done) return refuse(reply, action == "restore" ? 400 : 500, "Unable to " + action + " slot");
  respond(reply, {{"id_slot", *slot}, {"filename", name}});
}

// ---- completions

FakeLlamaServer::Ask FakeLlamaServer::ask_of(const Json& body, Form form) const {
  Ask ask;
  ask.form = form;
  ask.streams = body.value("stream", false);
  // Of /v1/messages neither goes on.
  ask.caches = form == Form::kMessages || body.value("cache_prompt", true);
  ask.has_lora = form != Form::kMessages && body.contains("lora") && !body["lora"].empty();
  ask.is_adapted = ask.has_lora && body["lora"][0].value("scale", 0.0) != 0;
  const auto most = body.value("n_predict", body.value("max_tokens", std::int64_t{16}));
  ask.most = most < 0 ? 2 * std::uint64_t{settings_.context} : static_cast<std::uint64_t>(most);
  if (body.contains("messages")) {
    ask.prompt = tokens_of_text(chat_text(body, ask.has_media));
  } else if (const Json& prompt = body.at("prompt"); prompt.is_string()) {
    ask.prompt = tokens_of_text(prompt.get<std::string>());
  } else if (prompt.is_object()) {
    ask.prompt = tokens_of_text(prompt.at("prompt_string").get<std::string>());
    ask.has_media = true;
  } else {
    ask.prompt = (prompt.at(0).is_array() ? prompt[0] : prompt).get<Tokens>();
  }
  if (ask.has_media) ask.prompt.push_back(kMedia);
  return ask;
}

void FakeLlamaServer::check_completion(const Json& body, Form form) {
  const auto wrong = [&](const char* what) { complain(std::string(what) + ": " + body.dump().substr(0, 200)); };
  for (const std::string& name : names_of(body)) {
    if (!kFields.contains(name)) wrong("a field that nobody asked for");
  }
  if (body.value("n_predict", 1) == 0 && names_of(body) != kPrefillFields) wrong("a prompt alone with other fields");
  const bool is_single = !body.contains("prompt") || !body["prompt"].is_array() || body["prompt"][0].is_number();
  const bool has_slot = body.contains("id_slot");
  if (!has_slot && form != Form::kMessages && is_single && body.value("n", 1u) <= settings_.slots) {
    wrong("a request without a slot");
  }
  // With --cache-reuse rows are moved wherever a body does not forbid it.
  const bool may_move = body.value("cache_prompt", true) && form != Form::kMessages;
  if (may_move && body.value("n_cache_reuse", has_slot ? 0 : 1) != 0) wrong("moved rows");
}

void FakeLlamaServer::complete(const Json& body, Form form, ReplyStream& reply) {
  check_completion(body, form);
  if (!body.contains("prompt") && !body.contains("messages")) return refuse(reply, 400, "no prompt");
  Ask ask = ask_of(body, form);
  std::optional<Fault> fault = begin(ask.most == 0 ? "prefill" : "answer");
  if (fault == Fault::kDrop) return drop(reply);
  ask.fails = fault == Fault::kErrorEvent;
  if (ask.fails) fault.reset();
  if (fault || ask.prompt.size() >= settings_.context) return refuse(reply, fault ? 500 : 400, "not today");
  std::optional<std::uint32_t> wanted;
  if (body.contains("id_slot") && form != Form::kMessages) wanted = body["id_slot"].get<std::uint32_t>();
  const std::uint32_t count = body.value("n", 1u);
  if (count > settings_.slots || wanted.value_or(0) >= settings_.slots) return refuse(reply, 400, "too few slots");
  const auto slot = take_slot(wanted, ask.prompt, reply);
  if (!slot) return;
  const std::vector<std::uint32_t> children = take_children(count - 1, reply);
  answer(ask, *slot, children, reply);
}

std::vector<std::uint32_t> FakeLlamaServer::take_children(std::uint32_t count, const ReplyStream& reply) {
  LockGuard guard(mutex_);
  while (!is_ending_ && !reply.is_gone()) {
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < slots_.size() && found.size() < count; ++i) {
      if (!slots_[i].is_busy) found.push_back(i);
    }
    if (found.size() == count) {
      for (const std::uint32_t child : found) slots_[child].is_busy = true;
      return found;
    }
    changed_.wait_for(mutex_, std::chrono::milliseconds(1));
  }
  return {};
}

// The real one empties them now, and has not promised to: here they keep what the other answer was made with.
void FakeLlamaServer::give_children(std::uint32_t parent, const std::vector<std::uint32_t>& children,
                                    const ReplyStream& reply) {
  for (const std::uint32_t child : children) {
    {
      LockGuard guard(mutex_);
      cut(child, 0);
      host_.share(parent, child, 0, static_cast<std::uint32_t>(slots_[parent].tokens.size()));
      slots_[child].tokens = slots_[parent].tokens;
      slots_[child].is_adapted = slots_[parent].is_adapted;
      slots_[child].has_media = slots_[parent].has_media;
    }
    give_slot(child, reply);
  }
}

void FakeLlamaServer::answer(const Ask& ask, std::uint32_t slot, const std::vector<std::uint32_t>& children,
                             ReplyStream& reply) {
  Made made;
  std::vector<float> logits;
  HttpResponse head;
  head.content_type = "text/event-stream";
  if (ask.streams) reply.begin(std::move(head));  // before the prompt is computed
  bool is_wanted = wait_while_held("prompt", &reply), is_lost = false;
  if (is_wanted) {
    LockGuard guard(mutex_);
    slots_[slot].is_computing = true;
    logits = compute(slot, ask, made);
    is_lost = slots_[slot].is_lost;
  }
  for (std::uint64_t i = 0; i < ask.most && is_wanted && !is_lost; ++i) {
    bool is_held = false;
    {
      LockGuard guard(mutex_);
      is_lost = !next_token(slot, ask, made, logits);
      is_held = held_ == "answer" && held_tokens_ == i;
    }
    if (is_lost) break;
    if (is_held) is_wanted = wait_while_held("answer", &reply);
    const auto [token, probability] = token_of(logits);
    made.tokens.push_back(token);
    made.probabilities.push_back(probability);
    const bool is_sent = !ask.streams || reply.write("data: " + piece(ask, token).dump() + "\n\n");
    is_wanted = is_wanted && is_sent && !reply.is_gone();
  }
  {
    LockGuard guard(mutex_);
    slots_[slot].is_computing = slots_[slot].is_lost = false;
  }
  give_children(slot, children, reply);
  give_slot(slot, reply);
  if (!is_wanted) return;
  if (is_lost) return end_lost(ask, reply);
  if (!ask.streams) return respond(reply, whole(ask, made));
  made.tokens.clear();
  (void)reply.write("data: " + whole(ask, made).dump() + "\n\ndata: [DONE]\n\n");
  (void)reply.end();
}

bool FakeLlamaServer::next_token(std::uint32_t slot, const Ask& ask, Made& made, std::vector<float>& logits) {
  if (ask.fails && !made.tokens.empty()) {
    cut(slot, 0);
    return false;
  }
  if (slots_[slot].is_lost) return false;
  if (settings_.shifts_context && slots_[slot].tokens.size() + 1 >= settings_.context) shift(slot);
  if (!made.tokens.empty()) logits = decode(slot, std::span(&made.tokens.back(), 1));
  return !slots_[slot].is_lost;
}

void FakeLlamaServer::end_lost(const Ask& ask, ReplyStream& reply) {
  const Json error = {{"code", 500}, {"message", "Context size has been exceeded."}, {"type", "server_error"}};
  if (!ask.streams) return respond(reply, {{"error", error}}, 500);
  (void)reply.write(ask.form == Form::kMessages
                        ? "event: error\ndata: " + Json{{"type", "error"}, {"error", error}}.dump() + "\n\n"
                        : "data: " + Json{{"error", error}}.dump() + "\n\n");
  (void)reply.end();
}

Json FakeLlamaServer::piece(const Ask& ask, TokenId token) {
  const std::string text = text_of(std::span(&token, 1));
  switch (ask.form) {
    case Form::kCompletion: return {{"content", text}, {"tokens", Tokens{token}}, {"stop", false}};
    case Form::kText: return {{"choices", Json::array({Json{{"text", text}}})}};
    default: return {{"choices", Json::array({Json{{"delta", {{"content", text}}}}})}};
  }
}

Json FakeLlamaServer::whole(const Ask& ask, const Made& made) {
  const std::string text = text_of(made.tokens);
  const std::uint64_t prompt = ask.prompt.size(), rest = prompt - made.cached;
  const std::uint64_t output = made.probabilities.size();
  const Json timings = {{"cache_n", made.cached}, {"prompt_n", rest}, {"predicted_n", output}};
  const Json usage = {{"prompt_tokens", prompt},
                      {"completion_tokens", output},
                      {"prompt_tokens_details", {{"cached_tokens", made.cached}}}};
  switch (ask.form) {
    case Form::kText: return {{"choices", Json::array({Json{{"text", text}}})}, {"usage", usage}};
    case Form::kChat: return {{"choices", Json::array({Json{{"message", {{"content", text}}}}})}, {"usage", usage}};
    case Form::kMessages:
      return {{"content", Json::array({Json{{"type", "text"}, {"text", text}}})},
              {"usage", {{"input_tokens", rest}, {"cache_read_input_tokens", made.cached}, {"output_tokens", output}}}};
    case Form::kCompletion: break;
  }
  Json probabilities = Json::array();
  for (std::size_t i = 0; i < made.tokens.size(); ++i) {
    probabilities.push_back({{"id", made.tokens[i]}, {"logprob", made.probabilities[i]}});
  }
  return {{"content", text},
          {"tokens", made.tokens},
          {"stop", true},
          {"tokens_evaluated", prompt},
          {"tokens_predicted", output},
          {"timings", timings},
          {"completion_probabilities", probabilities}};
}

}  // namespace larder::llama::relay_test
