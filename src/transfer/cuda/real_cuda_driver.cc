// SPDX-License-Identifier: Apache-2.0
// NVIDIA's driver, found when the program runs: a build with CUDA also starts where there is no GPU.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "transfer/cuda/copy_kernel_image.h"
#include "transfer/cuda/driver.h"

namespace larder {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
// The driver prepares a batch whole before the first copy of it begins: small ones keep the engines busy meanwhile.
constexpr std::size_t kBatch = 128;

// The functions of the driver that are used, by the names that cuda.h maps to their current versions.
#define LARDER_CUDA_FUNCTIONS(X)       \
  X(cuInit)                            \
  X(cuDriverGetVersion)                \
  X(cuDeviceGetCount)                  \
  X(cuDeviceGet)                       \
  X(cuDeviceGetName)                   \
  X(cuDeviceGetAttribute)              \
  X(cuDeviceGetPCIBusId)               \
  X(cuDeviceTotalMem)                  \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease)         \
  X(cuCtxSetCurrent)                   \
  X(cuCtxPushCurrent)                  \
  X(cuCtxPopCurrent)                   \
  X(cuCtxGetStreamPriorityRange)       \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuMemAlloc)                        \
  X(cuMemFree)                         \
  X(cuMemGetInfo)                      \
  X(cuMemHostRegister)                 \
  X(cuMemHostUnregister)               \
  X(cuMemHostGetDevicePointer)         \
  X(cuStreamCreateWithPriority)        \
  X(cuStreamDestroy)                   \
  X(cuStreamSynchronize)               \
  X(cuStreamWaitEvent)                 \
  X(cuStreamIsCapturing)               \
  X(cuEventCreate)                     \
  X(cuEventDestroy)                    \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuEventSynchronize)                \
  X(cuMemcpyAsync)                     \
  X(cuModuleLoadData)                  \
  X(cuModuleUnload)                    \
  X(cuModuleGetFunction)               \
  X(cuLaunchKernel)                    \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)

struct Functions {
#define LARDER_DECLARE(name) decltype(&::name) name = nullptr;
  LARDER_CUDA_FUNCTIONS(LARDER_DECLARE)
#undef LARDER_DECLARE
#if CUDA_VERSION >= 12080
  // cuMemcpyBatchAsync of CUDA 13, whose signature differs from that of 12.8; null: an older driver.
  using CopyBatch = CUresult (*)(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, CUmemcpyAttributes*,
                                 std::size_t*, std::size_t, CUstream);
  CopyBatch copy_batch = nullptr;
#endif
};

#define LARDER_TEXT_OF(name) #name
#define LARDER_NAME_OF(name) LARDER_TEXT_OF(name)  // of the version that cuda.h chose: cuMemAlloc_v2

// Never closed: the driver keeps threads of its own.
Result<Functions> load_functions() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unavailable(std::string("no CUDA driver: ") + ::dlerror() +
                       "; install NVIDIA's driver, or run without --device cuda");
  }
  Functions f;
#define LARDER_LOAD(name)                                                                                 \
  f.name = reinterpret_cast<decltype(f.name)>(::dlsym(library, LARDER_NAME_OF(name)));                    \
  if (f.name == nullptr) {                                                                                \
    return unavailable(std::string("the CUDA driver (") + kLibrary + ") has no " + LARDER_NAME_OF(name) + \
                       ": it is older than CUDA 12; install a newer one");                                \
  }
  LARDER_CUDA_FUNCTIONS(LARDER_LOAD)
#undef LARDER_LOAD
#if CUDA_VERSION >= 12080
  f.copy_batch = reinterpret_cast<Functions::CopyBatch>(::dlsym(library, "cuMemcpyBatchAsync_v2"));
#endif
  return f;
}

// What the caller should do about it.
StatusCode code_of(CUresult error) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: return StatusCode::kOverloaded;
    // A call that was wrong: the context lives on.
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
    case CUDA_ERROR_NOT_READY:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
    case CUDA_ERROR_INVALID_CONTEXT:
#if CUDA_VERSION >= 12040
    case CUDA_ERROR_INVALID_RESOURCE_TYPE:
    case CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION:
#endif
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_CAPTURED_EVENT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: return StatusCode::kInternal;
    // An illegal address, a failed launch, an uncorrectable memory error, the end of the process ...
    default: return StatusCode::kUnavailable;
  }
}

// While it lives, the calls of this thread do not disturb a stream capture of another (an engine that records a graph).
class BesideCaptures {
 public:
  explicit BesideCaptures(const Functions& f) : f_(f) { (void)f_.cuThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures() { (void)f_.cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  const Functions& f_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then: what it was
};

class LibcudaDriver final : public CudaDriver {
 public:
  LibcudaDriver(const Functions& functions, CUdevice device) : f_(functions), device_(device) {}
  LibcudaDriver(const LibcudaDriver&) = delete;
  LibcudaDriver& operator=(const LibcudaDriver&) = delete;
  ~LibcudaDriver() override {
    if (module_ != nullptr && enter().is_ok()) {
      f_.cuModuleUnload(module_);
      leave();
    }
    if (context_ != nullptr) f_.cuDevicePrimaryCtxRelease(device_);
  }

  Status open();
  const CudaFacts& facts() const override { return facts_; }

  Status bind_thread() override {
    LARDER_RETURN_IF_ERROR(status(f_.cuCtxSetCurrent(context_), "cuCtxSetCurrent"));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return status(f_.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
  }

  Result<std::byte*> allocate(std::size_t bytes) override {
    CUdeviceptr memory = 0;
    LARDER_RETURN_IF_ERROR(inside([&] { return f_.cuMemAlloc(&memory, bytes); }, "cuMemAlloc"));
    return reinterpret_cast<std::byte*>(memory);
  }
  Status free(std::byte* memory) override {
    return inside([&] { return f_.cuMemFree(pointer(memory)); }, "cuMemFree");
  }
  std::size_t free_bytes() override {
    std::size_t free = 0, total = 0;
    return inside([&] { return f_.cuMemGetInfo(&free, &total); }, "cuMemGetInfo").is_ok() ? free : 0;
  }
  Status register_host(std::byte* memory, std::size_t bytes) override;
  Status unregister_host(std::byte* memory) override {
    return inside([&] { return f_.cuMemHostUnregister(memory); }, "cuMemHostUnregister");
  }

  Result<CudaStream> create_stream() override {
    CUstream stream = nullptr;
    LARDER_RETURN_IF_ERROR(inside(
        [&] {
          int least = 0, greatest = 0;
          const CUresult ranged = f_.cuCtxGetStreamPriorityRange(&least, &greatest);
          if (ranged != CUDA_SUCCESS) return ranged;
          return f_.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest);
        },
        "cuStreamCreateWithPriority"));
    return static_cast<CudaStream>(stream);
  }
  Status destroy_stream(CudaStream stream) override {
    return inside([&] { return f_.cuStreamDestroy(static_cast<CUstream>(stream)); }, "cuStreamDestroy");
  }
  Status synchronize(CudaStream stream) override {
    return inside([&] { return f_.cuStreamSynchronize(static_cast<CUstream>(stream)); }, "cuStreamSynchronize");
  }
  Result<bool> is_capturing(CudaStream stream) override {
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = CUDA_SUCCESS;
    const auto call = [&] { return result = f_.cuStreamIsCapturing(static_cast<CUstream>(stream), &state); };
    Status asked = stream == nullptr ? inside(call, "cuStreamIsCapturing") : status(call(), "cuStreamIsCapturing");
    // The default stream, while a stream that waits for it is being captured: any work for it would end the capture.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
    LARDER_RETURN_IF_ERROR(asked);
    return state != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  Result<CudaEventHandle> create_event() override {
    CUevent event = nullptr;
    LARDER_RETURN_IF_ERROR(inside(
        [&] { return f_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC); }, "cuEventCreate"));
    return static_cast<CudaEventHandle>(event);
  }
  Status destroy_event(CudaEventHandle event) override {
    return inside([&] { return f_.cuEventDestroy(static_cast<CUevent>(event)); }, "cuEventDestroy");
  }
  // The context of a stream is its own; that of the default stream is the thread's, which is anyone's.
  Status record(CudaEventHandle event, CudaStream stream) override {
    const auto call = [&] { return f_.cuEventRecord(static_cast<CUevent>(event), static_cast<CUstream>(stream)); };
    return stream == nullptr ? inside(call, "cuEventRecord") : status(call(), "cuEventRecord");
  }
  Status wait(CudaStream stream, CudaEventHandle event) override {
    const auto call = [&] {
      return f_.cuStreamWaitEvent(static_cast<CUstream>(stream), static_cast<CUevent>(event), 0);
    };
    return stream == nullptr ? inside(call, "cuStreamWaitEvent") : status(call(), "cuStreamWaitEvent");
  }
  Result<bool> has_completed(CudaEventHandle event) override {
    const BesideCaptures beside(f_);
    const CUresult result = f_.cuEventQuery(static_cast<CUevent>(event));
    if (result == CUDA_ERROR_NOT_READY) return false;
    LARDER_RETURN_IF_ERROR(status(result, "cuEventQuery"));
    return true;
  }
  Status synchronize_event(CudaEventHandle event) override {
    return status(f_.cuEventSynchronize(static_cast<CUevent>(event)), "cuEventSynchronize");
  }

  Status copy(std::span<const CudaCopy> copies, CudaStream stream) override;
  Status launch(const CopyLaunch& launch, std::uint32_t blocks, CudaStream stream) override {
    void* parameters[] = {const_cast<CopyLaunch*>(&launch)};  // the driver copies them before it returns
    return status(f_.cuLaunchKernel(kernel_, blocks, 1, 1, kCopyKernelThreads, 1, 1, 0, static_cast<CUstream>(stream),
                                    parameters, nullptr),
                  "cuLaunchKernel");
  }

 private:
  static CUdeviceptr pointer(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
  [[nodiscard]] Status status(CUresult error, const char* call) const;
  [[nodiscard]] Status enter() { return status(f_.cuCtxPushCurrent(context_), "cuCtxPushCurrent"); }
  void leave() {
    CUcontext old = nullptr;
    f_.cuCtxPopCurrent(&old);
  }
  // For calls that use the thread's current context, which on a caller's thread is anyone's.
  template <class Call>
  [[nodiscard]] Status inside(Call&& call, const char* name) {
    LARDER_RETURN_IF_ERROR(enter());
    const BesideCaptures beside(f_);
    const CUresult result = call();
    leave();
    return status(result, name);
  }

  const Functions f_;
  const CUdevice device_;
  CUcontext context_ = nullptr;  // the device's primary one
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CudaFacts facts_;
#if CUDA_VERSION >= 12080
  [[nodiscard]] Status copy_batch(std::span<const CudaCopy> copies, CUstream stream);
#endif
};

Status LibcudaDriver::status(CUresult error, const char* call) const {
  if (error == CUDA_SUCCESS) return Status::ok();
  const char* name = "an unknown error";
  const char* text = "";
  (void)f_.cuGetErrorName(error, &name);
  (void)f_.cuGetErrorString(error, &text);
  return {code_of(error), std::string(call) + ": " + name + " (" + text + ")"};
}

Status LibcudaDriver::open() {
  LARDER_RETURN_IF_ERROR(status(f_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain"));
  std::array<char, 256> text{};
  LARDER_RETURN_IF_ERROR(status(f_.cuDeviceGetName(text.data(), text.size(), device_), "cuDeviceGetName"));
  facts_.name = text.data();
  if (f_.cuDeviceGetPCIBusId(text.data(), text.size(), device_) == CUDA_SUCCESS) facts_.pci_address = text.data();
  LARDER_RETURN_IF_ERROR(status(f_.cuDeviceTotalMem(&facts_.bytes, device_), "cuDeviceTotalMem"));
  const auto attribute = [&](CUdevice_attribute which, int& value) {
    return status(f_.cuDeviceGetAttribute(&value, which, device_), "cuDeviceGetAttribute");
  };
  int processors = 0, has_addressing = 0, has_register = 0;
  LARDER_RETURN_IF_ERROR(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, processors));
  facts_.processors = static_cast<std::uint32_t>(processors);
  LARDER_RETURN_IF_ERROR(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, has_addressing));
  LARDER_RETURN_IF_ERROR(attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, has_register));
  if (has_addressing == 0 || has_register == 0) {
    return unsupported(facts_.name + " does not reach registered host memory at its host address, which copies need");
  }
  LARDER_RETURN_IF_ERROR(inside(
      [&] {
        const CUresult loaded = f_.cuModuleLoadData(&module_, copy_kernel_image());
        return loaded != CUDA_SUCCESS ? loaded : f_.cuModuleGetFunction(&kernel_, module_, kCopyKernelName);
      },
      "cuModuleLoadData (the copy kernel)"));
  return Status::ok();
}

Status LibcudaDriver::register_host(std::byte* memory, std::size_t bytes) {
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  LARDER_RETURN_IF_ERROR(inside([&] { return f_.cuMemHostRegister(memory, bytes, kFlags); }, "cuMemHostRegister"));
  CUdeviceptr at = 0;
  Status mapped = inside([&] { return f_.cuMemHostGetDevicePointer(&at, memory, 0); }, "cuMemHostGetDevicePointer");
  if (mapped.is_ok() && at != pointer(memory)) {
    mapped = unsupported("the device sees host memory at another address than the host");
  }
  if (!mapped.is_ok()) (void)unregister_host(memory);
  return mapped;
}

Status LibcudaDriver::copy(std::span<const CudaCopy> copies, CudaStream stream) {
  auto* const to = static_cast<CUstream>(stream);
#if CUDA_VERSION >= 12080
  if (copies.size() > 1 && f_.copy_batch != nullptr) {
    // The driver prepares a batch whole before its first copy begins: an idle link shall not wait for a large one.
    for (std::size_t batch = kBatch / 8; !copies.empty(); batch = std::min(2 * batch, kBatch)) {
      const std::size_t count = std::min(copies.size(), batch);
      LARDER_RETURN_IF_ERROR(copy_batch(copies.first(count), to));
      copies = copies.subspan(count);
    }
    return Status::ok();
  }
#endif
  for (const CudaCopy& c : copies) {
    LARDER_RETURN_IF_ERROR(
        inside([&] { return f_.cuMemcpyAsync(pointer(c.dst), pointer(c.src), c.bytes, to); }, "cuMemcpyAsync"));
  }
  return Status::ok();
}

#if CUDA_VERSION >= 12080
Status LibcudaDriver::copy_batch(std::span<const CudaCopy> copies, CUstream stream) {
  std::array<CUdeviceptr, kBatch> dst{}, src{};
  std::array<std::size_t, kBatch> sizes{};
  for (std::size_t i = 0; i < copies.size(); ++i) {
    dst[i] = pointer(copies[i].dst);
    src[i] = pointer(copies[i].src);
    sizes[i] = copies[i].bytes;
  }
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  return inside(
      [&] {
        return f_.copy_batch(dst.data(), src.data(), sizes.data(), copies.size(), &attributes, &first, 1, stream);
      },
      "cuMemcpyBatchAsync");
}
#endif

}  // namespace

Result<std::shared_ptr<CudaDriver>> open_cuda_driver(int ordinal) {
  LARDER_ASSIGN_OR_RETURN(const Functions f, load_functions());
  const auto failed = [&](CUresult error, const char* call) {
    const char* name = "an unknown error";
    (void)f.cuGetErrorName(error, &name);
    return unavailable(std::string(call) + ": " + name + "; is there a GPU (nvidia-smi), and may this user open it?");
  };
  CUresult result = f.cuInit(0);
  if (result != CUDA_SUCCESS) return failed(result, "cuInit");
  // A driver loads code of its own major version and of older ones.
  int version = 0;
  result = f.cuDriverGetVersion(&version);
  if (result != CUDA_SUCCESS) return failed(result, "cuDriverGetVersion");
  if (version / 1000 < CUDA_VERSION / 1000) {
    return unavailable("the driver is of CUDA " + std::to_string(version / 1000) + ", and Larder was built with CUDA " +
                       std::to_string(CUDA_VERSION / 1000) +
                       ": install a driver of that version, or build with an older compiler (LARDER_CUDA_ROOT)");
  }
  int count = 0;
  result = f.cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS) return failed(result, "cuDeviceGetCount");
  if (ordinal < 0 || ordinal >= count) {
    return unavailable("no CUDA device " + std::to_string(ordinal) + ": this machine has " + std::to_string(count) +
                       ", counted from 0");
  }
  CUdevice device = 0;
  result = f.cuDeviceGet(&device, ordinal);
  if (result != CUDA_SUCCESS) return failed(result, "cuDeviceGet");
  auto driver = std::make_shared<LibcudaDriver>(f, device);
  LARDER_RETURN_IF_ERROR(driver->open());
  return std::shared_ptr<CudaDriver>(std::move(driver));
}

}  // namespace larder
