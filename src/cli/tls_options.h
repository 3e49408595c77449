// SPDX-License-Identifier: Apache-2.0
// The options that make a server speak TLS, for commands that keep their own table of options.
//
// Threads: main()'s.
#pragma once

#include "server/tls_files.h"

namespace CLI {  // NOLINT: their name
class App;
}

namespace larder {

// --ssl-certfile, --ssl-keyfile, --ssl-ca-certs. `files` outlives the parsing. What the files hold:
// TlsContext::check().
void add_tls_options(CLI::App& app, TlsFiles& files);

}  // namespace larder
