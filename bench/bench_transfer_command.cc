// `larder bench transfer`: options in.

#include <CLI/CLI.hpp>

#include "bench/bench_transfer.h"
#include "server/command_line.h"

namespace larder {

int bench_transfer(int argc, char** argv) {
  CLI::App app("Copies between device and host, per host layout and direction.", "larder bench transfer");
  std::size_t mebibytes = 128;
  app.add_option("MEBIBYTES", mebibytes, "to copy at a time, 16 to 128")
      ->type_name("")
      ->check(whole_number(16, 128))
      ->capture_default_str();
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_transfer_bench(mebibytes);
}

}  // namespace larder
