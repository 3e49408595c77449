// SPDX-License-Identifier: Apache-2.0
// larder._native: the C interface (include/larder/larder.h) for Python.
//
// Every call reads its arguments under the GIL into plain arrays, releases the GIL around the C call, and builds the
// answer under the GIL again: 10 us for 128 pages of two segments. docstrings are in _native.pyi and in the Python
// modules that wrap this one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "_native_arguments.h"
#include "_native_exit.h"
#include "_native_handles.h"
#include "larder/larder.h"

namespace nb = nanobind;

namespace larder_python {
namespace {

// In a destructor, which cannot raise. A handle that a thread drops while another one ends the interpreter stays open.
template <typename State>
void drop(std::shared_ptr<State>& state) {
  if (ends_elsewhere()) {
    (void)new std::shared_ptr<State>(std::move(state));
    return;
  }
  const Frame frame;
  const Closing closing;
  state.reset();
}

// ---- store ----

using PoolTuple = std::tuple<std::string, uint64_t, std::string, uint32_t, uint32_t, uint32_t>;
using NeedTuple = std::tuple<uint32_t, uint32_t, uint32_t>;

class Store {
 public:
  Store(const std::string& backend, const std::string& config,
        const std::vector<std::tuple<uint64_t, uint64_t>>& memory, const nb::object& log)
      : state_(std::make_shared<StoreState>()) {
    std::vector<larder_segment> regions;
    for (const auto& [address, size] : memory) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      regions.push_back({reinterpret_cast<void*>(address), static_cast<std::size_t>(size)});
    }
    larder_store_options options{};
    options.struct_size = sizeof(options);
    options.backend = c_text(backend, "backend");
    options.config = c_text(config, "config");
    options.memory = regions.empty() ? nullptr : regions.data();
    options.memory_count = regions.size();
    if (!log.is_none()) {
      state_->log = LogRelay::start(log.ptr());
      options.log = LogRelay::write;
      options.log_context = state_->log.get();
    }
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;
      code = larder_store_open(&options, &state_->handle, &error);
      if (code != LARDER_OK && state_->log != nullptr) {
        constexpr double kPatience = 1.0;
        state_->log->finish(kPatience);
      }
    }
    if (code != LARDER_OK) {
      raise_error(code, error);
    }
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() { drop(state_); }

  void close(double timeout_seconds) {
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;
      constexpr double kLogPatience = 5.0;  // with a log function that is slow
      code = state_->close(timeout_seconds, kLogPatience, &error);
    }
    if (code != LARDER_OK) {
      raise_error(code, error);
    }
    if (!state_->gate.is_of_this_process()) {
      let_log_go();  // the relay's thread is the parent's
    }
  }

  // For the garbage collector: the log function may be a method of the object that has the store.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) {
      const std::shared_ptr<StoreState>& state = nb::inst_ptr<Store>(self)->state_;
      if (state != nullptr && state->log != nullptr) {
        Py_VISIT(state->log->function());
      }
    }
    return 0;
  }
  static int forget(PyObject* self) {
    if (nb::inst_ready(self)) {
      nb::inst_ptr<Store>(self)->let_log_go();
    }
    return 0;
  }

  void add_memory(const std::vector<std::tuple<uint64_t, uint64_t>>& regions) {
    const Inside<StoreState> inside(state_);
    std::vector<larder_segment> memory;
    for (const auto& [address, size] : regions) {
      memory.push_back({reinterpret_cast<void*>(address), size});
    }
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;  // pinning gigabytes takes a while
      code = larder_store_add_memory(state_->handle, memory.data(), memory.size(), &error);
    }
    if (code != LARDER_OK) {
      raise_error(code, error);
    }
  }

  void clear(double timeout_seconds) {
    const Inside<StoreState> inside(state_);
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;
      code = larder_store_clear(state_->handle, timeout_seconds, &error);
    }
    if (code != LARDER_OK) {
      raise_error(code, error);
    }
  }

  nb::str text(bool metrics) {
    const Inside<StoreState> inside(state_);
    std::string out(4096, '\0');
    std::size_t length = 0;
    {
      const Released released;
      for (;;) {
        length = metrics ? larder_store_metrics(state_->handle, out.data(), out.size())
                         : larder_store_stats(state_->handle, out.data(), out.size());
        if (length < out.size()) {
          break;
        }
        out.resize(length + 1024);
      }
    }
    return nb::str(out.data(), length);
  }

  [[nodiscard]] const std::shared_ptr<StoreState>& state() const { return state_; }

 private:
  void let_log_go() {
    if (state_->log != nullptr) {
      state_->log->let_go();
    }
  }

  std::shared_ptr<StoreState> state_;
};

// ---- space ----

class Space {
 public:
  Space(const Store& store, uint32_t page_size, const std::string& identity, const std::string& adapter,
        const std::string& salt, const std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>& ranks,
        const std::vector<PoolTuple>& pools)
      : state_(std::make_shared<SpaceState>()) {
    std::vector<larder_pool> described;
    for (const auto& [name, page_bytes, layout, policy, trailing, flags] : pools) {
      larder_pool pool{};
      pool.struct_size = sizeof(pool);
      pool.flags = flags;
      pool.name = c_text(name, "the name of a pool");
      pool.page_bytes = page_bytes;
      pool.layout = c_text(layout, "the layout of a pool");
      pool.hit_policy = policy;
      pool.trailing_pages = trailing;
      described.push_back(pool);
      page_bytes_.push_back(page_bytes);
    }
    larder_space_options options{};
    options.struct_size = sizeof(options);
    options.page_size = page_size;
    options.identity = c_text(identity, "identity");
    options.adapter = c_text(adapter, "adapter");
    options.salt = c_text(salt, "salt");
    std::tie(options.tp_rank, options.tp_size, options.pp_rank, options.pp_size, options.cp_rank, options.cp_size) =
        ranks;
    options.pools = described.data();
    options.pool_count = described.size();
    const Inside<StoreState> inside(store.state());
    state_->store = store.state();
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;
      code = larder_space_open(store.state()->handle, &options, &state_->handle, &error);
      if (code == LARDER_OK) {
        store.state()->add(state_);
      }
    }
    if (code != LARDER_OK) {
      raise_error(code, error);
    }
  }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;
  ~Space() { drop(state_); }

  void close() {
    const Released released;
    state_->close();
  }

  void clear(double timeout_seconds) {
    const Inside<SpaceState> inside(state_);
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;
      code = larder_space_clear(state_->handle, timeout_seconds, &error);
    }
    if (code != LARDER_OK) {
      raise_error(code, error);
    }
  }

  nb::bytes digest() {
    const Inside<SpaceState> inside(state_);
    std::array<uint8_t, kKeyBytes> out{};
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;
      code = larder_space_digest(state_->handle, out.data());
    }
    if (code != LARDER_OK) {
      raise_error(code, error);
    }
    return nb::bytes(out.data(), out.size());
  }

  // -> (restorable words, present words of all pools one after the other; both little-endian bytes)
  nb::tuple exists(nb::handle keys, const std::optional<std::vector<NeedTuple>>& needs, double timeout_seconds,
                   bool want_present, Cancel* cancel) {
    const std::vector<uint8_t> raw = read_keys(keys);
    const std::size_t count = raw.size() / kKeyBytes;
    const std::size_t words = (count + 63) / 64;
    std::vector<larder_need> asked;
    asked.reserve(needs.has_value() ? needs->size() + 1 : 0);  // so that no needs are not null, which is all pools
    for (const auto& [pool, policy, trailing] : needs.value_or(std::vector<NeedTuple>{})) {
      asked.push_back({pool, policy, trailing});
    }
    const std::size_t pools = needs.has_value() ? asked.size() : page_bytes_.size();
    std::vector<uint64_t> restorable(words + 1, 0);
    std::vector<uint64_t> present(want_present ? words * pools + 1 : 0, 0);
    const larder_terms terms = make_terms(timeout_seconds, 0, cancel);
    const Inside<SpaceState> inside(state_);
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;
      code = larder_exists(state_->handle, raw.data(), count, needs.has_value() ? asked.data() : nullptr, asked.size(),
                           &terms, restorable.data(), want_present ? present.data() : nullptr, &error);
    }
    if (code != LARDER_OK) {
      raise_error(code, error);
    }
    return nb::make_tuple(nb::bytes(restorable.data(), words * 8),
                          nb::bytes(present.data(), want_present ? words * pools * 8 : 0));
  }

  nb::list get(nb::handle keys, uint32_t pool, nb::handle slots, const PageLayout& layout, double timeout_seconds,
               Cancel* cancel) {
    return run_layout(keys, pool, slots, layout, nb::none(), 0, timeout_seconds, cancel, false);
  }

  nb::list put(nb::handle keys, uint32_t pool, nb::handle slots, const PageLayout& layout, nb::handle parent,
               uint32_t flags, double timeout_seconds, Cancel* cancel) {
    return run_layout(keys, pool, slots, layout, parent, flags, timeout_seconds, cancel, true);
  }

  // pages: (pool, key, parent or None, data); data: None, a buffer, or a sequence of buffers and (address, size).
  nb::list get_pages(nb::handle pages, double timeout_seconds, Cancel* cancel) {
    return run_pages(pages, 0, timeout_seconds, cancel, false);
  }
  nb::list put_pages(nb::handle pages, uint32_t flags, double timeout_seconds, Cancel* cancel) {
    return run_pages(pages, flags, timeout_seconds, cancel, true);
  }

 private:
  nb::list run_layout(nb::handle keys, uint32_t pool, nb::handle slots, const PageLayout& layout, nb::handle parent,
                      uint32_t flags, double timeout_seconds, Cancel* cancel, bool is_put) {
    const std::vector<uint8_t> raw = read_keys(keys);
    const std::vector<uint64_t> at = read_integers<uint64_t>(slots, "slots");
    const std::size_t count = raw.size() / kKeyBytes;
    if (at.size() != count) {
      raise_argument(std::to_string(count) + " keys, but " + std::to_string(at.size()) + " slots");
    }
    const auto first_parent = read_optional_key(parent, "parent");
    const std::size_t width = layout.segment_count();
    std::vector<larder_segment> segments(count * width);
    std::vector<larder_page> pages(count);
    for (std::size_t i = 0; i < count; ++i) {
      layout.locate(at[i], segments.data() + i * width);
      larder_page& page = pages[i];
      page.key = raw.data() + i * kKeyBytes;
      page.segments = width == 0 ? nullptr : segments.data() + i * width;
      page.segment_count = static_cast<uint32_t>(width);
      page.pool = pool;
      if (is_put) {
        page.parent = i > 0 ? page.key - kKeyBytes : (first_parent.has_value() ? first_parent->data() : nullptr);
      }
    }
    return run(pages, make_terms(timeout_seconds, flags, cancel), is_put);
  }

  nb::list run_pages(nb::handle described, uint32_t flags, double timeout_seconds, Cancel* cancel, bool is_put) {
    const nb::object list = as_list(described);
    const auto count = static_cast<std::size_t>(PyList_Size(list.ptr()));
    std::vector<std::array<uint8_t, kKeyBytes>> keys(count);
    std::vector<std::optional<std::array<uint8_t, kKeyBytes>>> parents(count);
    std::vector<std::vector<larder_segment>> segments(count);
    std::vector<BufferView> views;
    std::vector<larder_page> pages(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto tuple = nb::cast<nb::tuple>(nb::borrow(PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(i))));
      if (nb::len(tuple) != 4) {
        raise_argument("pages[" + std::to_string(i) + "] is no (pool, key, parent, data)");
      }
      if (!read_key(nb::object(tuple[1]).ptr(), keys[i].data())) {
        raise_argument("the key of pages[" + std::to_string(i) + "] is neither 64 hex digits nor 32 bytes");
      }
      parents[i] = read_optional_key(nb::object(tuple[2]), "parent");
      add_data(nb::object(tuple[3]), i, !is_put, segments[i], views);
      pages[i].pool = nb::cast<uint32_t>(tuple[0]);
      pages[i].key = keys[i].data();
      pages[i].parent = parents[i].has_value() ? parents[i]->data() : nullptr;
      pages[i].segments = segments[i].empty() ? nullptr : segments[i].data();
      pages[i].segment_count = static_cast<uint32_t>(segments[i].size());
    }
    return run(pages, make_terms(timeout_seconds, flags, cancel), is_put);
  }

  static void add_buffer(nb::handle buffer, bool writable, std::vector<larder_segment>& segments,
                         std::vector<BufferView>& views) {
    const Py_buffer& view = views.emplace_back(buffer, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO).get();
    if (view.len > 0) {
      segments.push_back({view.buf, static_cast<std::size_t>(view.len)});
    }
  }

  // The memory of page `number`: a buffer, or a sequence of buffers and (address, size).
  static void add_data(nb::handle data, std::size_t number, bool writable, std::vector<larder_segment>& segments,
                       std::vector<BufferView>& views) {
    if (data.is_none()) {
      return;
    }
    if (PyObject_CheckBuffer(data.ptr()) != 0) {
      return add_buffer(data, writable, segments, views);
    }
    const nb::object list = as_list(data);
    for (Py_ssize_t i = 0; i < PyList_Size(list.ptr()); ++i) {
      const nb::handle item(PyList_GetItem(list.ptr(), i));
      if (PyObject_CheckBuffer(item.ptr()) != 0) {
        add_buffer(item, writable, segments, views);
        continue;
      }
      std::tuple<uint64_t, uint64_t> place;
      if (!nb::try_cast(item, place)) {
        raise_argument("data[" + std::to_string(i) + "] of pages[" + std::to_string(number) +
                       "] is neither a buffer nor (address, size)");
      }
      const auto [address, size] = place;
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      segments.push_back({reinterpret_cast<void*>(address), static_cast<std::size_t>(size)});
    }
  }

  nb::list run(std::vector<larder_page>& pages, const larder_terms& terms, bool is_put) {
    constexpr int32_t kUntouched = -1;
    for (larder_page& page : pages) {
      page.code = kUntouched;
    }
    const Inside<SpaceState> inside(state_);
    larder_error error{};
    larder_code code = LARDER_OK;
    {
      const Released released;
      code = is_put ? larder_put(state_->handle, pages.data(), pages.size(), &terms, &error)
                    : larder_get(state_->handle, pages.data(), pages.size(), &terms, &error);
    }
    if (code == LARDER_INVALID_ARGUMENT) {  // the caller's mistake, not a page's fate
      raise_error(code, error);
    }
    nb::list out;
    for (const larder_page& page : pages) {
      if (page.code == kUntouched && code != LARDER_OK) {
        raise_error(code, error);
      }
      out.append(static_cast<int>(page.code == kUntouched ? 0 : page.code));
    }
    return out;
  }

  std::shared_ptr<SpaceState> state_;
  std::vector<uint64_t> page_bytes_;
};

// ---- free functions ----

nb::list page_keys(nb::handle tokens, uint32_t page_size, nb::handle prior) {
  const std::vector<uint32_t> ids = read_integers<uint32_t>(tokens, "tokens");
  const auto seed = read_optional_key(prior, "prior");
  if (page_size == 0) {
    raise_argument("page_size is 0");
  }
  std::vector<uint8_t> keys((ids.size() / page_size) * kKeyBytes + 1);
  const std::size_t count =
      larder_page_keys(ids.data(), ids.size(), page_size, seed.has_value() ? seed->data() : nullptr, keys.data());
  nb::list out;
  for (std::size_t i = 0; i < count; ++i) {
    out.append(nb::bytes(keys.data() + i * kKeyBytes, kKeyBytes));
  }
  return out;
}

// The places of the set bits of little-endian `words`, each plus one: lengths from a mask of them.
nb::list lengths(const nb::bytes& words) {
  const auto* bytes = static_cast<const uint8_t*>(words.data());
  nb::list out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      if ((bytes[i] >> bit & 1U) != 0) {
        out.append(i * 8 + bit + 1);
      }
    }
  }
  return out;
}

std::string option_help(const std::optional<std::string>& backend) {
  const char* name = backend.has_value() ? backend->c_str() : nullptr;
  std::string text(larder_store_option_help(name, nullptr, 0) + 1, '\0');
  text.resize(larder_store_option_help(name, text.data(), text.size()));
  return text;
}

using InFrame = nb::call_guard<Frame>;

}  // namespace
}  // namespace larder_python

// NOLINTNEXTLINE: the macro is nanobind's
NB_MODULE(_native, m) {
  using namespace larder_python;  // NOLINT(google-build-using-namespace): the classes that this module has
  count_anew_after_fork();
  nb::set_leak_warnings(false);  // objects that live until the process ends are no leak
  nb::class_<Cancel>(m, "Cancel").def(nb::init<>(), InFrame()).def("set", &Cancel::set, InFrame());

  nb::class_<PageLayout>(m, "PageLayout")
      .def(nb::init<const std::vector<std::tuple<uint64_t, uint64_t, uint64_t>>&, uint64_t, uint64_t>(),
           nb::arg("segments"), nb::arg("slots_per_page"), nb::arg("slots"), InFrame())
      .def("addresses", &PageLayout::addresses, nb::arg("slot"), InFrame())
      .def_prop_ro("segment_count", &PageLayout::segment_count)
      .def_prop_ro("page_bytes", &PageLayout::page_bytes)
      .def_prop_ro("slots_per_page", &PageLayout::slots_per_page)
      .def_prop_ro("slots", &PageLayout::slots);

  PyType_Slot store_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&Store::traverse)},
                               {Py_tp_clear, reinterpret_cast<void*>(&Store::forget)},
                               {0, nullptr}};
  nb::class_<Store>(m, "Store", nb::type_slots(store_slots))
      .def(nb::init<const std::string&, const std::string&, const std::vector<std::tuple<uint64_t, uint64_t>>&,
                    const nb::object&>(),
           nb::arg("backend"), nb::arg("config"), nb::arg("memory"), nb::arg("log").none(), InFrame())
      .def("close", &Store::close, nb::arg("timeout"), InFrame())
      .def("add_memory", &Store::add_memory, nb::arg("regions"), InFrame())
      .def("clear", &Store::clear, nb::arg("timeout"), InFrame())
      .def("text", &Store::text, nb::arg("metrics"), InFrame());

  nb::class_<Space>(m, "Space")
      .def(nb::init<const Store&, uint32_t, const std::string&, const std::string&, const std::string&,
                    const std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>&,
                    const std::vector<PoolTuple>&>(),
           nb::arg("store"), nb::arg("page_size"), nb::arg("identity"), nb::arg("adapter"), nb::arg("salt"),
           nb::arg("ranks"), nb::arg("pools"), InFrame())
      .def("close", &Space::close, InFrame())
      .def("clear", &Space::clear, nb::arg("timeout"), InFrame())
      .def("digest", &Space::digest, InFrame())
      .def("exists", &Space::exists, nb::arg("keys"), nb::arg("needs").none(), nb::arg("timeout"),
           nb::arg("want_present"), nb::arg("cancel").none(), InFrame())
      .def("get", &Space::get, nb::arg("keys"), nb::arg("pool"), nb::arg("slots"), nb::arg("layout"),
           nb::arg("timeout"), nb::arg("cancel").none(), InFrame())
      .def("put", &Space::put, nb::arg("keys"), nb::arg("pool"), nb::arg("slots"), nb::arg("layout"),
           nb::arg("parent").none(), nb::arg("flags"), nb::arg("timeout"), nb::arg("cancel").none(), InFrame())
      .def("get_pages", &Space::get_pages, nb::arg("pages"), nb::arg("timeout"), nb::arg("cancel").none(), InFrame())
      .def("put_pages", &Space::put_pages, nb::arg("pages"), nb::arg("flags"), nb::arg("timeout"),
           nb::arg("cancel").none(), InFrame());

  m.def("page_keys", &page_keys, nb::arg("tokens"), nb::arg("page_size"), nb::arg("prior").none(), InFrame());
  m.def("lengths", &lengths, nb::arg("words"), InFrame());
  m.def("option_help", &option_help, nb::arg("backend").none(), InFrame());
  m.def("version", [] { return std::string(larder_version()); });
  m.def("abi_version", [] { return larder_abi_version(); });
  m.def("backends", [] { return std::string(larder_backends()); });
  m.def(
      "code_name", [](int32_t code) { return std::string(larder_code_name(code)); }, nb::arg("code"));
  m.def(
      "set_error_class", [](const nb::object& error_class) { g_error_class = nb::object(error_class).release().ptr(); },
      nb::arg("error_class"));
  // The last thing before the interpreter ends.
  m.def("stop_log", &at_interpreter_end);

  if (larder_abi_version() != LARDER_ABI_VERSION) {
    const std::string text = "liblarder.so has ABI version " + std::to_string(larder_abi_version()) +
                             ", and larder._native was built for " + std::to_string(LARDER_ABI_VERSION) +
                             ": another library is found before the package's own (LD_LIBRARY_PATH, LD_PRELOAD?), or "
                             "the package is half of another version; install it anew";
    throw nb::import_error(text.c_str());
  }
}
