// SPDX-License-Identifier: Apache-2.0
// Tells systemd how far a service of Type=notify is (sd_notify(3)), without libsystemd: a datagram to the socket that
// the environment names. Without one, nothing happens: a command that a person has started goes the same way.
//
// Threads: main()'s. Neither call blocks for longer than the socket's queue is full; what cannot be sent is logged, and
// the service goes on: systemd's own time limits then decide.
#pragma once

namespace larder {

// The port listens, and what is asked there is answered.
void tell_service_is_ready();
// A stop has begun: nothing new is accepted, what is open has its time.
void tell_service_is_stopping();

}  // namespace larder
