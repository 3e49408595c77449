// SPDX-License-Identifier: Apache-2.0
#include "cli/tls_options.h"

#include <CLI/CLI.hpp>

namespace larder {

void add_tls_options(CLI::App& app, TlsFiles& files) {
  app.add_option("--ssl-certfile", files.certificate,
                 "speak HTTPS with this certificate: PEM, with those that lead to its authority behind it")
      ->type_name("FILE");
  app.add_option("--ssl-keyfile", files.key, "its private key: PEM, not encrypted; none: it is in --ssl-certfile")
      ->type_name("FILE");
  app.add_option("--ssl-ca-certs", files.client_ca, "clients must show a certificate that one of these has issued")
      ->type_name("FILE");
}

}  // namespace larder
