// SPDX-License-Identifier: Apache-2.0
// The files that make a server speak TLS, in the words of uvicorn and SGLang. A value.
#pragma once

#include <string>

#include "base/clock.h"

namespace larder {

struct TlsFiles {
  // --ssl-certfile: PEM, the server's certificate first, then those that lead to its authority. Empty: no TLS.
  std::string certificate;
  std::string key;        // --ssl-keyfile: PEM, not encrypted. Empty: it is in the certificate's file
  std::string client_ca;  // --ssl-ca-certs: a client must show a certificate that one of these has issued. Empty: none
  Nanos look_interval = std::chrono::seconds(1);  // renewed files are seen after so long, by new connections

  [[nodiscard]] bool is_wanted() const { return !certificate.empty(); }
};

}  // namespace larder
