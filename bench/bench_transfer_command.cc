// SPDX-License-Identifier: Apache-2.0
// `larder bench transfer`: options in.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/bench_transfer.h"
#include "bench/bench_transfer_cuda.h"
#include "model/pool_spec.h"
#include "server/command_line.h"

namespace larder {

int bench_transfer(int argc, char** argv) {
  CLI::App app("Copies between device and host, per host layout and direction.", "larder bench transfer");
  app.get_formatter()->column_width(34);
  std::string device = "cpu";
  std::size_t mebibytes = 0;
  CudaBenchOptions cuda;
  app.add_option("MEBIBYTES", mebibytes, "to copy at a time: cpu 16 to 128 (128), cuda 1 to 16384 (1024)")
      ->type_name("")
      ->check(whole_number(1, 16'384));
  app.add_option("--device", device, "where pages are: cpu, cuda, or the simulated driver of the tests")
      ->type_name("NAME")
      ->check(CLI::IsMember({"cpu", "cuda", "cuda-simulated"}))
      ->capture_default_str();
  app.add_option("--ordinal", cuda.device.ordinal, "which CUDA device")
      ->type_name("NUMBER")
      ->check(whole_number(0, 1'000))
      ->capture_default_str();
  app.add_option("--load-blocks", cuda.device.load_blocks, "blocks of the copy kernel, host to device")
      ->type_name("NUMBER")
      ->check(whole_number(1, 1'024))
      ->capture_default_str();
  app.add_option("--store-blocks", cuda.device.store_blocks, "... device to host")
      ->type_name("NUMBER")
      ->check(whole_number(1, 1'024))
      ->capture_default_str();
  app.add_option("--load-engines-from", cuda.device.load_engines_from, "loads of pieces from this size: copy engines")
      ->type_name("BYTES")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--store-engines-from", cuda.device.store_engines_from, "... stores")
      ->type_name("BYTES")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--staging-buffers", cuda.device.staging_buffers, "of small pieces, in each direction; 0: straight")
      ->type_name("NUMBER")
      ->check(whole_number(0, 64))
      ->capture_default_str();
  app.add_option("--staging-bytes", cuda.device.staging_bytes, "of each buffer")
      ->type_name("BYTES")
      ->check(whole_number(1, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--piece", cuda.kibibytes, "sizes of a piece, in KiB (4 16 64 256 2048)")
      ->type_name("KIB ...")
      ->check(whole_number(1, 65'536));
  std::vector<std::string> layouts;
  app.add_option("--layout", layouts, "host layouts (all)")
      ->type_name("NAME ...")
      ->check(CLI::IsMember({"layer_first", "page_first", "page_first_direct", "page_head"}));
  bool has_no_gates = false;
  app.add_flag("--no-gates", has_no_gates, "without the tables of gated loads");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  cuda.with_gates = !has_no_gates;
  if (!layouts.empty()) cuda.layouts.clear();
  for (const std::string& layout : layouts) cuda.layouts.push_back(*parse_host_layout(layout));
  if (device != "cpu") {
    cuda.is_simulated = device != "cuda";
    if (mebibytes > 0) cuda.mebibytes = mebibytes;
    return run_cuda_transfer_bench(cuda);
  }
  if (mebibytes == 0) mebibytes = 128;
  if (mebibytes < 16 || mebibytes > 128) {
    std::fprintf(stderr, "larder bench transfer: MEBIBYTES: %zu is not from 16 to 128, which --device cpu takes\n",
                 mebibytes);
    return 2;
  }
  return run_transfer_bench(mebibytes);
}

}  // namespace larder
