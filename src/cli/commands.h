// SPDX-License-Identifier: Apache-2.0
// The subcommands of `larder`. argv[0] is the subcommand's name; the answer is the process's exit code:
// 0 done, 1 failed, 2 usage.
#pragma once

namespace larder {

int serve_command(int argc, char** argv);
// serve --model x.gguf, and whether that is meant.
bool is_for_llama(int argc, char** argv);
int serve_llama_command(int argc, char** argv);
int explain_command(int argc, char** argv);
int bench_command(int argc, char** argv);
int store_command(int argc, char** argv);
int conformance_command(int argc, char** argv);
int metadata_server_command(int argc, char** argv);
int stat_command(int argc, char** argv);
int attach_command(int argc, char** argv);
int detach_command(int argc, char** argv);
int quickstart_command(int argc, char** argv);
int proxy_command(int argc, char** argv);
int sim_command(int argc, char** argv);

}  // namespace larder
