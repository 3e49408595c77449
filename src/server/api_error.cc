// SPDX-License-Identifier: Apache-2.0
#include "server/api_error.h"

#include <nlohmann/json.hpp>

#include "server/json_text.h"

namespace larder {
namespace {

std::string_view error_type(unsigned status) {
  switch (status) {
    case 400: return "BadRequestError";
    case 401: return "AuthenticationError";
    case 404: return "NotFoundError";
    case 405: return "MethodNotAllowedError";
    case 409: return "ConflictError";
    case 413: return "PayloadTooLargeError";
    case 503: return "ServiceUnavailableError";
    case 504: return "TimeoutError";
    default: return status >= 500 ? "InternalServerError" : "BadRequestError";
  }
}

}  // namespace

unsigned http_status_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return 200;
    case StatusCode::kInvalidArgument: return 400;
    case StatusCode::kNotFound: return 404;
    case StatusCode::kConflict: return 409;
    case StatusCode::kOverloaded: return 503;
    case StatusCode::kDeadlineExceeded: return 504;
    case StatusCode::kCancelled: return 503;
    case StatusCode::kCorrupt: return 500;
    case StatusCode::kUnavailable: return 503;
    case StatusCode::kUnsupported: return 501;
    case StatusCode::kInternal: return 500;
  }
  return 500;
}

std::string error_body(unsigned status, std::string_view message, std::string_view param) {
  nlohmann::ordered_json error;
  error["message"] = cut_text(message, kMostErrorBytes);
  error["type"] = error_type(status);
  if (param.empty()) {
    error["param"] = nullptr;
  } else {
    error["param"] = param;
  }
  error["code"] = status;
  nlohmann::ordered_json body;
  body["error"] = std::move(error);
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpResponse error_response(unsigned status, std::string_view message, std::string_view param) {
  HttpResponse response;
  response.status = status;
  response.body = error_body(status, message, param);
  return response;
}

HttpResponse error_response(const Status& status) {
  return error_response(http_status_of(status.code()), status.message());
}

}  // namespace larder
