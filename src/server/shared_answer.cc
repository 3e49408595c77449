// SPDX-License-Identifier: Apache-2.0
#include "server/shared_answer.h"

#include <exception>
#include <utility>

#include "server/api_error.h"

namespace larder {

SharedAnswer::SharedAnswer(std::string thread_name, Make make)
    : make_(std::move(make)), thread_(std::move(thread_name), 1, 1, OnShutdown::kDrop) {}

void SharedAnswer::ask(std::shared_ptr<HttpExchange> exchange) {
  {
    LockGuard guard(mutex_);
    asking_.push_back(std::move(exchange));
  }
  (void)thread_.post([this] { answer_all(); });  // refused: one waits already, and will see this exchange, too
}

void SharedAnswer::answer_all() {
  std::vector<std::shared_ptr<HttpExchange>> asking;
  {
    LockGuard guard(mutex_);
    asking.swap(asking_);
  }
  if (asking.empty()) return;
  try {
    const HttpResponse answer = make_();
    for (const auto& exchange : asking) exchange->respond(answer);
  } catch (const std::exception& error) {  // out of memory: those already answered stay so
    for (const auto& exchange : asking) exchange->respond(error_response(500, error.what()));
  }
}

}  // namespace larder
