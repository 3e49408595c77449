// SPDX-License-Identifier: Apache-2.0
#include "tests/llama_relay/fake_llama_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/file_system.h"
#include "engine/llama/slot_file.h"

namespace larder::llama::relay_test {
namespace {

constexpr std::size_t kHeadBytes = 8;  // of a blob that is in no slot file
constexpr std::uint32_t kScratch = 1u << 16;
constexpr Nanos kServerLook = std::chrono::milliseconds(2), kLeaving = std::chrono::milliseconds(500),
                kServerLimit = std::chrono::seconds(20);

std::vector<std::byte> file_bytes(const std::string& path) {
  const auto file = real_file_system().open(path, {});
  if (!file.is_ok()) return {};
  std::vector<std::byte> bytes(static_cast<std::size_t>((*file)->size_bytes().value_or(0)));
  return read_exactly(**file, bytes, 0).is_ok() ? bytes : std::vector<std::byte>{};
}

std::uint64_t common_length(const Tokens& a, const Tokens& b) {
  return static_cast<std::uint64_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

FakeLlamaServer::FakeLlamaServer(const FakeServerSettings& settings)
    : settings_(settings),
      host_(settings.geometry),
      slots_(settings.slots),
      adapters_(settings.adapters),
      instance_(settings.instance) {
  ListenOptions listen;
  listen.port = settings.port;
  listen.tls = settings.tls;
  auto listener = HttpListener::create(
      listen,
      [this](HttpRequest request, const std::shared_ptr<HttpExchange>& exchange) {
        EXPECT_TRUE(pool_.post([this, request = std::move(request), exchange] { serve(request, exchange); }));
      },
      metrics_);
  EXPECT_TRUE(listener.is_ok()) << listener.status().to_string();
  if (listener.is_ok()) listener_ = std::move(*listener);
}

FakeLlamaServer::~FakeLlamaServer() {
  {
    LockGuard guard(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  listener_.reset();
  pool_.wait_idle();
}

// ---- for tests

void FakeLlamaServer::fail(const std::string& what, Fault fault, int count) {
  LockGuard guard(mutex_);
  faults_[what] = {fault, count};
}

void FakeLlamaServer::hold(const std::string& what, std::uint64_t tokens) {
  LockGuard guard(mutex_);
  held_ = what;
  held_tokens_ = tokens;
}

void FakeLlamaServer::release() {
  LockGuard guard(mutex_);
  held_.clear();
  changed_.notify_all();
}

void FakeLlamaServer::doze() {
  LockGuard guard(mutex_);
  empty_slots();
  is_sleeping_ = true;
}

void FakeLlamaServer::replace() {
  LockGuard guard(mutex_);
  empty_slots();
  instance_.insert(instance_.size() - 3, "R");  // another marker
}

void FakeLlamaServer::empty_slots() {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) cut(slot, 0);
}

std::string FakeLlamaServer::instance() {
  LockGuard guard(mutex_);
  return instance_;
}

bool FakeLlamaServer::is_sleeping() {
  LockGuard guard(mutex_);
  return is_sleeping_;
}

void FakeLlamaServer::wake() {
  LockGuard guard(mutex_);
  is_sleeping_ = false;
}

bool FakeLlamaServer::wait_held(int count) {
  const TimePoint end = real_clock().now() + kServerLimit;
  LockGuard guard(mutex_);
  while (waiting_ < count && real_clock().now() < end) changed_.wait_for(mutex_, kServerLook);
  return waiting_ >= count;
}

bool FakeLlamaServer::wait_queued(int count) {
  const TimePoint end = real_clock().now() + kServerLimit;
  LockGuard guard(mutex_);
  const auto queued = [&] {
    int all = 0;
    for (const Slot& slot : slots_) all += slot.waiting;
    return all;
  };
  while (queued() < count && real_clock().now() < end) changed_.wait_for(mutex_, kServerLook);
  return queued() >= count;
}

int FakeLlamaServer::calls(const std::string& what) {
  LockGuard guard(mutex_);
  return calls_[what];
}

std::vector<std::string> FakeLlamaServer::take_complaints() {
  LockGuard guard(mutex_);
  return std::exchange(complaints_, {});
}

FakeLlamaServer::Json FakeLlamaServer::adapters() {
  LockGuard guard(mutex_);
  return adapters_;
}

void FakeLlamaServer::set_adapters(Json adapters) {
  LockGuard guard(mutex_);
  adapters_ = std::move(adapters);
}

void FakeLlamaServer::complain(std::string text) {
  LockGuard guard(mutex_);
  complain_locked(std::move(text));
}

void FakeLlamaServer::complain_locked(std::string text) { complaints_.push_back(std::move(text)); }

std::optional<Fault> FakeLlamaServer::begin(const std::string& what) {
  LockGuard guard(mutex_);
  ++calls_[what];
  const auto fault = faults_.find(what);
  if (fault == faults_.end() || fault->second.second-- <= 0) return std::nullopt;
  return fault->second.first;
}

bool FakeLlamaServer::wait_while_held(const std::string& what, const ReplyStream* stops_with) {
  LockGuard guard(mutex_);
  ++waiting_;
  while (held_ == what && !is_ending_ && (stops_with == nullptr || !stops_with->is_gone())) {
    changed_.wait_for(mutex_, kServerLook);
  }
  --waiting_;
  return !is_ending_ && (stops_with == nullptr || !stops_with->is_gone());
}

// ---- slots

std::optional<std::uint32_t> FakeLlamaServer::choose(const Tokens& prompt) const {
  std::optional<std::uint32_t> best, oldest;
  std::uint64_t most = prompt.size() / 10;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].is_busy) continue;
    if (!oldest || slots_[i].used < slots_[*oldest].used) oldest = i;
    const std::uint64_t same = common_length(slots_[i].tokens, prompt);
    if (same > most) {
      most = same;
      best = i;
    }
  }
  return best ? best : oldest;
}

std::optional<std::uint32_t> FakeLlamaServer::take_slot(std::optional<std::uint32_t> wanted, const Tokens& prompt,
                                                        const ReplyStream& reply) {
  LockGuard guard(mutex_);
  bool is_waiting = false;
  std::optional<std::uint32_t> found;
  while (!is_ending_ && !reply.is_gone()) {
    found = wanted;
    if (!wanted) found = choose(prompt);
    if (found && !slots_[*found].is_busy) break;
    if (wanted && !std::exchange(is_waiting, true)) ++slots_[*wanted].waiting;
    found.reset();
    changed_.wait_for(mutex_, kServerLook);
  }
  if (is_waiting) --slots_[*wanted].waiting;
  if (!found || is_ending_ || reply.is_gone()) return std::nullopt;
  slots_[*found].is_busy = true;
  slots_[*found].used = ++uses_;
  return found;
}

// Who waits for a slot is right if the client of the request before has left, which is seen a little later.
void FakeLlamaServer::give_slot(std::uint32_t slot, const ReplyStream& reply) {
  const TimePoint end = real_clock().now() + kLeaving;
  LockGuard guard(mutex_);
  while (slots_[slot].waiting > 0 && !reply.is_gone() && !is_ending_ && real_clock().now() < end) {
    changed_.wait_for(mutex_, kServerLook);
  }
  if (slots_[slot].waiting > 0 && !reply.is_gone() && !is_ending_) {
    complain_locked(fmt::format("two requests at once in slot {}", slot));
  }
  slots_[slot].is_busy = false;
  changed_.notify_all();
}

bool FakeLlamaServer::save(std::uint32_t slot, const std::string& path, std::optional<Fault> fault) {
  std::vector<std::byte> bytes;
  {
    LockGuard guard(mutex_);
    if (slots_[slot].tokens.empty()) complain_locked("a save of an empty slot");
    if (slots_[slot].has_media || slots_[slot].tokens.empty()) return false;
    const auto blob = host_.save(slot, false);
    if (!blob) complain_locked("a slot without a blob: " + blob.status().to_string());
    if (!blob) return false;
    Tokens tokens = slots_[slot].tokens;
    bytes.resize(slot_head_bytes(tokens.size()));
    if (fault == Fault::kOtherToken) ++tokens[tokens.size() / 2];
    write_slot_head(tokens, bytes);
    bytes.insert(bytes.end(), blob->begin() + kHeadBytes, blob->end());
  }
  if (fault == Fault::kCut || fault == Fault::kRefuse) bytes.resize(bytes.size() - 3);
  const auto file = settings_.files->open(path, {.write = true, .create = true, .truncate = true});
  return file.is_ok() && write_fully(**file, bytes, 0).is_ok();
}

// In two halves, as somebody might write to the file meanwhile.
bool FakeLlamaServer::restore(std::uint32_t slot, const std::string& path) {
  std::vector<std::byte> bytes = file_bytes(path);
  (void)wait_while_held("restore", nullptr);
  const std::vector<std::byte> again = file_bytes(path);
  const std::size_t half = std::min(bytes.size(), again.size()) / 2;
  std::copy(again.begin() + static_cast<std::ptrdiff_t>(half),
            again.begin() + static_cast<std::ptrdiff_t>(std::min(bytes.size(), again.size())),
            bytes.begin() + static_cast<std::ptrdiff_t>(half));
  const auto file = parse_slot_file(bytes);
  if (!file || file->tokens.empty() || file->tokens.size() > settings_.context) return false;
  const auto parts = parse_sequence_blob(file->blob, settings_.geometry, {.has_header = false});
  if (!parts) return false;
  const std::uint64_t end = file->tokens.size();
  const bool fits = (!parts->full || parts->full->end == end) && (!parts->window || parts->window->end == end) &&
                    (!parts->recurrent || parts->recurrent->position == end);
  std::vector<std::byte> blob(kHeadBytes);
  store_le(blob.data(), kBlobMagic);
  blob.insert(blob.end(), file->blob.begin(), file->blob.end());
  LockGuard guard(mutex_);
  if (!fits) complain_locked("a restored file whose parts end at different tokens");
  cut(slot, 0);
  if (shared_cells() > 0 && used_cells() + end > shared_cells()) return false;
  Slot& mine = slots_[slot];
  const Status loaded = host_.load(slot, blob, false);
  if (!fits || !loaded.is_ok()) return false;
  mine.tokens = file->tokens;
  const std::uint64_t oldest = parts->window ? parts->window->begin : 0;
  mine.lacks_window = oldest > 0 && oldest + settings_.geometry.window_tokens >= end;
  mine.composed = end;
  mine.oldest = oldest;
  return true;
}

// ---- computing

std::uint64_t FakeLlamaServer::shared_cells() const {
  if (settings_.geometry.streams > 1 || settings_.slots == 1) return 0;
  return settings_.shared_context > 0 ? settings_.shared_context : settings_.context;
}

std::uint64_t FakeLlamaServer::used_cells() const {
  std::uint64_t all = 0;
  for (const Slot& one : slots_) all += one.tokens.size();
  return all;
}

bool FakeLlamaServer::make_room(std::uint64_t tokens) {
  while (shared_cells() > 0 && used_cells() + tokens > shared_cells()) {
    const auto is_idle = [](const Slot& one) { return !one.is_busy && !one.tokens.empty(); };
    const auto idle = std::ranges::find_if(slots_, is_idle);
    if (idle != slots_.end()) {
      cut(static_cast<std::uint32_t>(idle - slots_.begin()), 0);
      continue;
    }
    for (std::uint32_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].is_computing) continue;
      slots_[i].is_lost = true;
      cut(i, 0);
    }
    return false;
  }
  return true;
}

void FakeLlamaServer::cut(std::uint32_t slot, std::uint64_t tokens) {
  host_.share(slot, kScratch, 0, static_cast<std::uint32_t>(tokens));
  host_.clear(slot);
  if (tokens > 0) host_.share(kScratch, slot, 0, static_cast<std::uint32_t>(tokens));
  host_.clear(kScratch);
  Slot& mine = slots_[slot];
  mine.tokens.resize(static_cast<std::size_t>(tokens));
  std::erase_if(mine.checkpoints, [&](const auto& one) { return one.first > tokens; });
  mine.lacks_window = false;
  if (tokens > 0) return;
  mine.has_media = mine.is_shifted = false;
  mine.composed = mine.oldest = 0;
}

bool FakeLlamaServer::goes_back(std::uint32_t slot, std::uint64_t same, std::uint64_t prompt) const {
  const bool has_all_rows = settings_.has_full_window && !settings_.geometry.recurrent;
  return has_all_rows && same > 0 && slots_[slot].oldest < same - (same == prompt ? 1 : 0);
}

// Behind what was restored the rows are those of the tokens; the host has dropped some of them.
void FakeLlamaServer::go_back(std::uint32_t slot, std::uint64_t tokens) {
  Slot& mine = slots_[slot];
  if (tokens == mine.tokens.size()) return;
  if (tokens < mine.composed) return cut(slot, tokens);
  const std::uint64_t composed = mine.composed, oldest = mine.oldest;
  const Tokens kept(mine.tokens.begin(), mine.tokens.begin() + static_cast<std::ptrdiff_t>(tokens));
  cut(slot, 0);
  (void)decode(slot, kept);
  mine.composed = composed;
  mine.oldest = oldest;
}

// The rows are those of other tokens then.
void FakeLlamaServer::shift(std::uint32_t slot) {
  Tokens rest = slots_[slot].tokens;
  rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(rest.size() / 2));
  cut(slot, rest.size());
  slots_[slot].tokens = std::move(rest);
  slots_[slot].is_shifted = true;
}

// Where it goes on; the slot stands there then.
std::uint64_t FakeLlamaServer::resume(std::uint32_t slot, const Ask& ask) {
  Slot& mine = slots_[slot];
  // Who names no adapters goes on from what others computed with theirs.
  if (ask.has_lora && ask.is_adapted != mine.is_adapted) cut(slot, 0);
  mine.is_adapted = ask.is_adapted;
  if (mine.has_media && ask.caches && !ask.has_media) complain_locked("a slot with images that was not emptied");
  if (mine.is_shifted && ask.caches) complain_locked("a slot that was shifted and not emptied");
  const std::uint64_t same = ask.caches ? common_length(mine.tokens, ask.prompt) : 0;
  std::uint64_t at = 0;
  if (!settings_.geometry.has_partial_form()) {
    at = std::min<std::uint64_t>(same, ask.prompt.size() - 1);
    cut(slot, at);
  } else if (goes_back(slot, same, ask.prompt.size())) {
    at = std::min<std::uint64_t>(same, ask.prompt.size() - 1);
    go_back(slot, at);
  } else if (same > 0 && same == mine.tokens.size() && same < ask.prompt.size() && !mine.lacks_window) {
    at = same;
  } else {
    auto found = mine.checkpoints.upper_bound(std::min<std::uint64_t>(same, ask.prompt.size() - 1));
    if (found == mine.checkpoints.begin()) {
      cut(slot, 0);
    } else {
      --found;
      at = found->first;
      cut(slot, at);
      const Status loaded = host_.load(slot, mine.checkpoints[at], true);
      if (!loaded.is_ok()) complain_locked("a checkpoint: " + loaded.to_string());
    }
  }
  mine.has_media = ask.has_media;
  return at;
}

std::vector<float> FakeLlamaServer::decode(std::uint32_t slot, std::span<const TokenId> tokens) {
  Slot& mine = slots_[slot];
  if (!make_room(tokens.size())) return {};
  constexpr TokenId kAdapted = 5000;
  Tokens seen(tokens.begin(), tokens.end());
  for (TokenId& token : seen) token += mine.is_adapted ? kAdapted : 0;
  const auto logits = host_.decode(slot, static_cast<std::uint32_t>(mine.tokens.size()), seen);
  mine.tokens.insert(mine.tokens.end(), tokens.begin(), tokens.end());
  if (!logits) complain_locked("a slot that cannot go on: " + logits.status().to_string());
  return logits.value_or({});
}

std::vector<float> FakeLlamaServer::compute(std::uint32_t slot, const Ask& ask, Made& made) {
  made.cached = resume(slot, ask);
  std::span<const TokenId> rest = std::span(ask.prompt).subspan(static_cast<std::size_t>(made.cached));
  const std::uint64_t offset = settings_.checkpoint_offset;
  if (offset > 0 && rest.size() > offset) {
    (void)decode(slot, rest.first(rest.size() - offset));
    if (slots_[slot].is_lost) return {};
    auto blob = host_.save(slot, true);
    if (blob) slots_[slot].checkpoints[ask.prompt.size() - offset] = std::move(*blob);
    rest = rest.last(offset);
  }
  return decode(slot, rest);
}

}  // namespace larder::llama::relay_test
