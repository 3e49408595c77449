// SPDX-License-Identifier: Apache-2.0
#include "storage/plugin/plugin_call.h"

#include <cstring>

namespace larder::plugin {

std::string PluginCall::message(std::string_view what) const {
  std::string out = place_ + ": " + std::string(what);
  const std::size_t length = ::strnlen(text_.data(), text_.size());  // perhaps without its 0
  if (length == 0) return out;
  out += ": ";
  for (std::size_t i = 0; i < length; ++i) out += static_cast<unsigned char>(text_[i]) < ' ' ? ' ' : text_[i];
  return out;
}

Status PluginCall::broken(std::string_view what) const { return internal_error(message(what)); }

Status PluginCall::status_of(std::int32_t code, Answers answers) const {
  switch (code) {
    case LARDER_BACKEND_OK: return Status::ok();
    case LARDER_BACKEND_ALREADY: return answers == Answers::kWriteItem ? Status::ok() : broken("misplaced ALREADY");
    case LARDER_BACKEND_NOT_FOUND:
      if (answers != Answers::kExistsItem && answers != Answers::kReadItem) return broken("misplaced NOT_FOUND");
      return not_found(message("not there"));
    case LARDER_BACKEND_CORRUPT:
      if (answers != Answers::kReadItem) return broken("misplaced CORRUPT");
      return corrupt(message("damaged"));
    case LARDER_BACKEND_INVALID: return invalid_argument(message("refused"));
    case LARDER_BACKEND_OVERLOADED: return overloaded(message("full"));
    case LARDER_BACKEND_UNAVAILABLE: return unavailable(message("cannot serve now"));
    case LARDER_BACKEND_UNSUPPORTED: return unsupported(message("not supported"));
    case LARDER_BACKEND_INTERNAL: return broken("reports a defect of its own");
    case LARDER_BACKEND_NOT_ANSWERED: return broken("gave no answer");
    case kThrew: return broken("threw an exception");
    default: return broken("answered with the unknown code " + std::to_string(code));
  }
}

}  // namespace larder::plugin
