// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_llama_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/file_system.h"

namespace larder {
namespace {

constexpr Nanos kStartLimit = std::chrono::minutes(10);
constexpr Nanos kAnswerLimit = std::chrono::hours(1);
constexpr Nanos kSettleLimit = std::chrono::minutes(2);
constexpr Nanos kStopLimit = std::chrono::seconds(90);  // the proxy waits for its storage
constexpr int kKillMillis = 20'000;
constexpr Nanos kLookAgain = std::chrono::milliseconds(100);
constexpr int kStillLooks = 3;  // as many looks at the proxy have found the same
constexpr std::string_view kReusedField = "X-Larder-Reused-Tokens";

std::atomic<bool> is_stop_asked{false};  // relaxed, all: a signal handler's
std::atomic<int> child_to_end{-1}, llama_to_end{-1};

// SIGKILL: a llama-server that is asked to end while it computes waits for its client, and that waits for it.
extern "C" void end_servers(int) {
  is_stop_asked.store(true, std::memory_order_relaxed);
  for (const std::atomic<int>* process : {&child_to_end, &llama_to_end}) {
    const int pid = process->load(std::memory_order_relaxed);
    if (pid > 0) ::kill(pid, SIGKILL);
  }
}

using SignalAction = struct ::sigaction;

void set_handler(void (*handler)(int)) {
  SignalAction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

struct ProcessFacts {
  int parent = -1;
  double cpu_seconds = 0;  // user and system, all threads
};

// /proc/PID/stat; nothing: no such process.
std::optional<ProcessFacts> process_facts(int pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  const std::size_t name_end = line.rfind(')');  // a name may have blanks and parentheses
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(line.substr(name_end + 1));
  std::string state, skipped;
  ProcessFacts facts;
  words >> state >> facts.parent;
  for (int i = 0; i < 9; ++i) words >> skipped;  // pgrp to cmajflt
  double user = 0, system = 0;
  words >> user >> system;
  facts.cpu_seconds = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return facts;
}

// The first child of a process; -1: it has none.
int child_of(int parent) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failed)) {
    const std::string name = entry.path().filename().string();
    int pid = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    const std::optional<ProcessFacts> facts = process_facts(pid);
    if (facts && facts->parent == parent) return pid;
  }
  return -1;
}

Result<nlohmann::json> body_json(std::string_view what, unsigned status, const std::string& body) {
  if (status != 200) return unavailable(fmt::format("{}: HTTP {}: {}", what, status, body.substr(0, 500)));
  nlohmann::json document = nlohmann::json::parse(body, nullptr, false);
  if (document.is_discarded()) return unavailable(fmt::format("{}: the answer is not JSON", what));
  return document;
}

}  // namespace

LlamaBenchStop::LlamaBenchStop() {
  is_stop_asked = false;
  set_handler(end_servers);
}
LlamaBenchStop::~LlamaBenchStop() { set_handler(SIG_DFL); }
bool LlamaBenchStop::is_asked() { return is_stop_asked.load(std::memory_order_relaxed); }
void LlamaBenchStop::set_servers(int child, int llama_server) {
  child_to_end.store(child, std::memory_order_relaxed);
  llama_to_end.store(llama_server, std::memory_order_relaxed);
}

double metric_of(std::string_view text, std::string_view name) {
  double sum = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(name) || line.size() == name.size()) continue;
    if (line[name.size()] != ' ' && line[name.size()] != '{') continue;
    const std::string_view number = line.substr(line.rfind(' ') + 1);
    double value = 0;
    (void)std::from_chars(number.data(), number.data() + number.size(), value);
    sum += value;
  }
  return sum;
}

// ---- start and end

LlamaBenchServer::~LlamaBenchServer() { (void)stop(); }

std::string LlamaBenchServer::log_path() const { return join_path(folders_.files, "server.log"); }

Status LlamaBenchServer::with_log(const Status& status) const {
  if (status.is_ok() || LlamaBenchStop::is_asked()) return status;
  const std::string log = tail_of_file(log_path(), 12);
  const std::string said = log.empty() ? "" : "\nthe server said:\n" + log;
  return Status(status.code(), fmt::format("{}: {}{}", llama_setup_name(setup_), status.message(), said));
}

std::vector<std::string> LlamaBenchServer::server_command() const {
  std::vector<std::string> command = {
      options_.llama_server,           "-m", model_, "-c", "8192", "-np", "1", "-ub", "512", "-t",
      std::to_string(options_.threads)};
  command.insert(command.end(), options_.server_arguments.begin(), options_.server_arguments.end());
  return command;
}

Status LlamaBenchServer::start() {
  if (LlamaBenchStop::is_asked()) return cancelled("a signal came");
  return with_log(setup_ == LlamaSetup::kPlain ? start_plain() : start_ours());
}

Status LlamaBenchServer::start_plain() {
  const Result<std::uint16_t> port = free_loopback_port();
  if (!port.is_ok()) return port.status();
  std::vector<std::string> arguments = {"/bin/sh", "-c", kOutputToErrors, "llama-server"};
  const std::vector<std::string> command = server_command();
  arguments.insert(arguments.end(), command.begin(), command.end());
  const std::string port_text = std::to_string(*port);
  arguments.insert(arguments.end(), {"--host", "127.0.0.1", "--port", port_text, "--slot-save-path", folders_.slots});
  LARDER_RETURN_IF_ERROR(child_.start(arguments, log_path()));
  LlamaBenchStop::set_servers(child_.pid(), -1);
  llama_pid_ = child_.pid();
  HttpUrl url;
  url.host = "127.0.0.1";
  url.port = *port;
  client_ = std::make_unique<HttpClient>(url, kAnswerLimit);
  return wait_ready();
}

std::vector<std::string> LlamaBenchServer::our_command() const {
  const bool is_proxy = setup_ == LlamaSetup::kProxy;
  std::vector<std::string> command = {options_.larder, is_proxy ? "proxy" : "serve"};
  const auto add = [&](std::initializer_list<std::string> words) { command.insert(command.end(), words); };
  add({"--port", "0", "--store", join_path(folders_.files, "store"), "--host-memory", options_.host_memory});
  add({"--page-size", std::to_string(options_.page_size)});
  if (is_proxy) {
    add({"--slot-dir", folders_.slots, "--"});
    const std::vector<std::string> server = server_command();
    command.insert(command.end(), server.begin(), server.end());
  } else {
    add({"--model", model_, "-c", "8192", "-p", "1", "-b", "512", "-t", std::to_string(options_.threads)});
  }
  return command;
}

Status LlamaBenchServer::start_ours() {
  LARDER_RETURN_IF_ERROR(child_.start(our_command(), log_path()));
  LlamaBenchStop::set_servers(child_.pid(), -1);
  const Result<std::string> line = child_.read_line(kStartLimit);
  if (!line.is_ok()) return unavailable("it did not start: " + line.status().message());
  const std::size_t begin = line->find("http://");
  if (begin == std::string::npos) return unavailable("its first line names no URL: " + *line);
  const Result<HttpUrl> url = parse_http_url(line->substr(begin, line->find(' ', begin) - begin));
  if (!url.is_ok()) return url.status();
  const Result<std::string> summary = child_.read_line(kStartLimit);
  if (!summary.is_ok()) return summary.status();
  summary_ = *summary;
  llama_pid_ = setup_ == LlamaSetup::kProxy ? child_of(child_.pid()) : child_.pid();
  if (llama_pid_ < 0) return unavailable("its llama-server is not there");
  LlamaBenchStop::set_servers(child_.pid(), llama_pid_);
  client_ = std::make_unique<HttpClient>(*url, kAnswerLimit);
  return Status::ok();
}

Status LlamaBenchServer::wait_ready() {
  const TimePoint end = real_clock().now() + kStartLimit;
  for (;;) {
    const Result<HttpReply> health = client_->request("GET", "/health");
    if (health.is_ok() && health->status == 200) return Status::ok();
    if (real_clock().now() >= end) return deadline_exceeded("it did not become ready");
    LARDER_RETURN_IF_ERROR(look_again());
  }
}

Status LlamaBenchServer::look_again() {
  const Result<std::string> line = child_.read_line(kLookAgain);
  if (line.is_ok() || line.status().code() == StatusCode::kDeadlineExceeded) return Status::ok();
  return unavailable("it has ended");
}

Status LlamaBenchServer::stop() {
  LlamaBenchStop::set_servers(-1, -1);
  client_.reset();
  llama_pid_ = -1;
  if (!child_.is_running()) return Status::ok();
  const Result<int> code = child_.stop(kStopLimit);
  if (!code.is_ok()) return with_log(code.status());
  return *code == 0 ? Status::ok() : with_log(unavailable(fmt::format("it ended with exit code {}", *code)));
}

// The proxy first, or it would start its llama-server again.
Status LlamaBenchServer::kill_all() {
  LlamaBenchStop::set_servers(-1, -1);
  client_.reset();
  const int handle = static_cast<int>(::syscall(SYS_pidfd_open, std::exchange(llama_pid_, -1), 0));
  child_.kill_now();
  bool has_ended = handle < 0;
  if (!has_ended) {
    (void)::syscall(SYS_pidfd_send_signal, handle, SIGKILL, nullptr, 0);
    pollfd wanted{handle, POLLIN, 0};
    has_ended = ::poll(&wanted, 1, kKillMillis) > 0;
    ::close(handle);
  }
  (void)child_.stop(kStopLimit);
  return has_ended ? Status::ok() : unavailable("llama-server survived its kill");
}

Status LlamaBenchServer::use_slot(std::string_view action) {
  const Result<HttpReply> reply =
      client_->request("POST", fmt::format("/slots/0?action={}", action), R"({"filename":"bench.slot"})");
  if (!reply.is_ok()) return why_lost(reply.status());
  return body_json(fmt::format("slot {}", action), reply->status, reply->body).status();
}

Status LlamaBenchServer::restart() {
  const bool saves = setup_ == LlamaSetup::kPlain && !std::exchange(has_slot_file_, true);
  if (saves) LARDER_RETURN_IF_ERROR(with_log(use_slot("save")));
  LARDER_RETURN_IF_ERROR(with_log(kill_all()));
  LARDER_RETURN_IF_ERROR(start());
  return setup_ == LlamaSetup::kPlain ? with_log(use_slot("restore")) : Status::ok();
}

// ---- requests

double LlamaBenchServer::cpu_seconds() const {
  double seconds = 0;
  if (const auto llama = process_facts(llama_pid_)) seconds += llama->cpu_seconds;
  if (setup_ != LlamaSetup::kProxy) return seconds;
  if (const auto proxy = process_facts(child_.pid())) seconds += proxy->cpu_seconds;
  return seconds;
}

Status LlamaBenchServer::why_lost(const Status& status) {
  return look_again().is_ok() ? status : unavailable("it has ended: " + status.message());
}

Status LlamaBenchServer::check_llama() const {
  const auto llama = process_facts(llama_pid_);
  const bool is_there = llama && (setup_ != LlamaSetup::kProxy || llama->parent == child_.pid());
  return is_there ? Status::ok() : unavailable("its llama-server has ended");
}

// Every slot that was written has been read, and storage has taken what it takes of it.
Status LlamaBenchServer::wait_settled() {
  const TimePoint end = real_clock().now() + kSettleLimit;
  double stored = -1;
  for (int still = 0; still < kStillLooks;) {
    const Result<HttpReply> reply = client_->request("GET", "/metrics");
    if (!reply.is_ok()) return why_lost(reply.status());
    const auto value = [&](std::string_view name) { return metric_of(reply->body, name); };
    const bool is_proxy = setup_ == LlamaSetup::kProxy;
    const char* begun = is_proxy ? "larder_proxy_save_seconds_count" : "larder_serve_saves_begun_total";
    const bool is_idle = value(is_proxy ? "larder_proxy_slots_busy" : "larder_serve_slots_busy") == 0 &&
                         value(begun) == value(is_proxy ? "larder_proxy_saves_total" : "larder_serve_saves_total");
    const double stored_now = value(is_proxy ? "larder_proxy_stored_pages_total" : "larder_serve_stored_pages_total");
    still = is_idle && stored_now == stored ? still + 1 : 0;
    stored = stored_now;
    if (real_clock().now() >= end) return deadline_exceeded("what was saved is not put away");
    LARDER_RETURN_IF_ERROR(look_again());
  }
  return Status::ok();
}

Result<LlamaSample> LlamaBenchServer::ask(std::span<const TokenId> prompt) {
  const std::string body =
      nlohmann::json{{"prompt", prompt}, {"n_predict", 1}, {"temperature", 0}, {"cache_prompt", true}}.dump();
  const std::vector<HttpField> fields = {{"Content-Type", "application/json"}};
  HttpRelayRequest request;
  request.method = "POST";
  request.target = "/completion";
  request.fields = fields;
  request.body = body;
  HttpReplyHead head;
  std::string answer;
  const double cpu_before = cpu_seconds();
  const TimePoint begun = real_clock().now();
  const Status status = client_->relay(
      request,
      [&](const HttpReplyHead& got) {
        head = got;
        return true;
      },
      [&](std::string_view piece) {
        answer += piece;
        return true;
      });
  LlamaSample sample;
  sample.seconds = std::chrono::duration<double>(real_clock().now() - begun).count();
  if (!status.is_ok()) return with_log(why_lost(status));
  const Result<nlohmann::json> document = body_json("/completion", head.status, answer);
  if (!document.is_ok()) return with_log(document.status());
  if (setup_ == LlamaSetup::kPlain) {
    const auto timings = document->find("timings");
    if (timings == document->end()) return with_log(unavailable("/completion: an answer without timings"));
    sample.reused = timings->value("cache_n", std::uint64_t{0});
  } else {
    const std::string* reused = find_field(head.fields, kReusedField);
    if (reused == nullptr) return with_log(unavailable("/completion: an answer that does not say what was reused"));
    (void)std::from_chars(reused->data(), reused->data() + reused->size(), sample.reused);
    LARDER_RETURN_IF_ERROR(with_log(wait_settled()));
  }
  LARDER_RETURN_IF_ERROR(with_log(check_llama()));
  sample.cpu_seconds = cpu_seconds() - cpu_before;
  return sample;
}

}  // namespace larder
