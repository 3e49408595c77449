// SPDX-License-Identifier: Apache-2.0
#include "tests/llama_relay/relay_rig.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "engine/llama/blob_test_util.h"
#include "engine/llama/gguf_test_util.h"
#include "tests/support/certificates.h"

namespace larder::llama::relay_test {
namespace {

constexpr Nanos kLimit = std::chrono::seconds(20), kLook = std::chrono::milliseconds(5);

// The head of a model with this window, if there is any.
std::vector<std::byte> model_file(std::uint32_t window, bool has_long_factors) {
  gguf_test::GgufWriter out;
  out.text("general.architecture", "fake");
  out.text("general.name", "fake");
  if (window > 0) out.u32("fake.attention.sliding_window", window);
  out.u32("fake.rope.scaling.original_context_length", kOriginalContext);
  out.tensor("token_embd.weight", {16, 2}, 0, 0);
  if (has_long_factors) out.tensor("rope_factors_long.weight", {4}, 0, 128);
  return out.file(has_long_factors ? 160 : 128);
}

std::vector<std::byte> small_file(std::uint32_t number) {
  gguf_test::GgufWriter out;
  out.u32("number", number);
  out.tensor("a.weight", {16, 2}, 0, 0);
  return out.file(128);
}

void write_whole(const std::string& path, std::span<const std::byte> bytes) {
  const auto file = real_file_system().open(path, {.write = true, .create = true});
  EXPECT_TRUE(file.is_ok() && write_fully(**file, bytes, 0).is_ok());
}

}  // namespace

Rig::Rig(const RigOptions& options) : options_(options) {
  write_whole(models_.path() + "/model.gguf", model_file(options.geometry.window_tokens, options.has_long_factors));
  if (options.has_adapter) write_adapter(1);
  if (options.has_control_vector) write_control_vector(1);
  if (options.is_secure) {
    const support::CertificateAuthority authority("an authority of tests");
    const support::IssuedCertificate issued = authority.issue();
    support::put_file(tls().certificate, issued.certificate + issued.key);
    support::put_file(ca_file(), authority.pem());
  }
  start_server();
  start_proxy();
}

TlsFiles Rig::tls() const {
  TlsFiles files;
  if (options_.is_secure) files.certificate = certificates_.path() + "/both.pem";
  return files;
}

Rig::~Rig() {
  stop_proxy();
  kill_server();
}

void Rig::write_adapter(std::uint32_t number) const {
  write_whole(models_.path() + "/adapter.gguf", small_file(number));
}

void Rig::write_control_vector(std::uint32_t number) const {
  write_whole(models_.path() + "/vector.gguf", small_file(number));
}

void Rig::start_server(const std::string& build, std::uint32_t context) {
  FakeServerSettings settings;
  settings.geometry = options_.geometry;
  settings.slots = options_.slots;
  settings.context = context;
  settings.shared_context = options_.shared_context;
  settings.shifts_context = options_.shifts_context;
  settings.has_full_window = options_.has_full_window;
  if (options_.has_adapter) {
    settings.adapters = {{{"id", 0}, {"path", models_.path() + "/adapter.gguf"}, {"scale", 1.0}}};
  }
  settings.checkpoint_offset = options_.checkpoint_offset;
  settings.key = options_.key;
  settings.slot_directory = slots_.path();
  settings.model_path = models_.path() + "/model.gguf";
  settings.build = build;
  settings.instance = marker_.value_or(fmt::format("<__media_{:032}__>", ++starts_));
  settings.port = port_;
  settings.tls = tls();
  settings.files = &folder_;
  server_ = std::make_unique<FakeLlamaServer>(settings);
  port_ = server_->port();
}

void Rig::kill_server() {
  if (server_ == nullptr) return;
  for (const std::string& complaint : server_->take_complaints()) ADD_FAILURE() << complaint;
  server_.reset();
}

void Rig::start_proxy() {
  const Status started = try_start_proxy(false);
  ASSERT_TRUE(started.is_ok()) << started.to_string();
}

Status Rig::try_start_proxy(bool caps_slots) {
  ProxySettings settings;
  if (options_.is_own) settings.starts = [this] { return starts_.load(); };
  settings.shifts_context = options_.shifts_context;
  settings.caps_slots = caps_slots;
  settings.has_full_windows = options_.has_full_window;
  settings.upstream = fmt::format("{}://127.0.0.1:{}", options_.is_secure ? "https" : "http", port_);
  settings.upstream_ca = ca_file();
  settings.upstream_key = options_.key;
  settings.listen.tls = tls();
  settings.slot_directory = slots_.path();
  settings.start_limit = kLimit;
  settings.quiet_limit = options_.quiet_limit;
  settings.ask_limit = options_.ask_limit;
  settings.slots_limit = options_.slots_limit;
  settings.proof_pause = options_.proof_pause;
  if (options_.has_control_vector) settings.control_vectors = {models_.path() + "/vector.gguf"};
  settings.saves = {.page_size = kPage, .grid = 0, .spacing = kPage};
  settings.trace = options_.trace;
  settings.workers = options_.workers;
  settings.store.host_bytes = std::uint64_t{16} << 20;
  settings.store.storage = "file";
  settings.store.storage_config = Json{{"directory", store_.path()}, {"max_size", "64Mi"}}.dump();
  metrics_ = std::make_unique<MetricsRegistry>();
  auto proxy = LlamaProxy::create(settings, folder_, *options_.clock, *metrics_);
  if (!proxy.is_ok()) return proxy.status();
  proxy_ = std::move(*proxy);
  return Status::ok();
}

HttpUrl Rig::url() const {
  const Result<HttpUrl> url = parse_http_url(proxy_->url(), ca_file());
  EXPECT_TRUE(url.is_ok());
  return url.value_or({});
}

Answer Rig::post(const std::string& path, const Json& body, const std::vector<HttpField>& more) const {
  HttpClient client(url(), kLimit);
  const std::string text = body.dump();
  std::vector<HttpField> fields = {{"Content-Type", "application/json"}};
  fields.insert(fields.end(), more.begin(), more.end());
  Answer out;
  std::string got;
  out.status = client.relay(
      {"POST", path, fields, text},
      [&](const HttpReplyHead& head) {
        out.http = head.status;
        for (const HttpField& field : head.fields) {
          if (field.name == "X-Larder-Reused-Tokens") out.reused = std::stoull(field.value);
          if (field.name == "X-Larder-Reused-From") out.from = field.value;
          if (field.name == "X-Larder-Miss") out.miss = field.value;
        }
        return true;
      },
      [&](std::string_view bytes) {
        got += bytes;
        return true;
      });
  out.body = Json::parse(got, nullptr, false);
  if (out.body.is_object() && out.body.contains("tokens")) out.tokens = out.body["tokens"].get<Tokens>();
  return out;
}

Answer Rig::ask(const Tokens& prompt, const Json& more) const {
  Json body = {{"prompt", prompt}, {"n_predict", 4}, {"return_tokens", true}};
  body.update(more);
  Answer answer = post("/completion", body);
  EXPECT_EQ(answer.http, 200u) << answer.status.to_string() << " " << answer.body.dump();
  EXPECT_EQ(answer.tokens, expected(prompt, body["n_predict"])) << answer.reused.value_or(0) << " reused";
  return answer;
}

bool Rig::has_waiting() const {
  const auto status = HttpClient(url(), kLimit).request("GET", "/larder/status");
  return status.value_or({}).body.find("\"waiting\":1") != std::string::npos;
}

void Rig::wait_idle() const {
  const TimePoint end = real_clock().now() + kLimit;
  RankedMutex mutex(LockRank::kServer);
  RankedCondition never;
  HttpClient client(url(), kLimit);
  for (;;) {
    const auto reply = client.request("GET", "/larder/status");
    ASSERT_TRUE(reply.is_ok()) << reply.status().to_string();
    const Json slots = Json::parse(reply->body).at("slots");
    if (slots.at("busy") == 0 && slots.at("waiting") == 0) break;
    ASSERT_LT(real_clock().now(), end) << "a slot is never given back";
    LockGuard guard(mutex);
    never.wait_for(mutex, kLook);
  }
  const Status drained = proxy_->drain_storage(kLimit);
  ASSERT_TRUE(drained.is_ok()) << drained.to_string();
}

double Rig::metric(const std::string& name) const {
  HttpClient client(url(), kLimit);
  const auto reply = client.request("GET", "/metrics");
  EXPECT_TRUE(reply.is_ok());
  const std::string text = reply.is_ok() ? "\n" + reply->body : "";
  const std::size_t at = text.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

std::vector<std::string> Rig::slot_files() const {
  std::vector<std::string> names = real_file_system().list(slots_.path()).value_or({});
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("larder-") || name == kProxyLockName; });
  std::ranges::sort(names);
  return names;
}

void Rig::flush() const {
  HttpClient client(url(), kLimit);
  EXPECT_TRUE(client.request("POST", "/larder/flush", "{}").is_ok());
}

Tokens random_tokens(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>('A' + rng.below(50));
  return tokens;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

BlobGeometry geometry_of(const std::string& name) {
  for (auto& one : blob_test::all_geometries()) {
    if (one.name == name) return one.geometry;
  }
  ADD_FAILURE() << name;
  return {};
}

}  // namespace larder::llama::relay_test
