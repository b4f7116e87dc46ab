// The backend of process groups for tensors on `sim`.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sim {

// Collectives run over `inner`, a backend for the CPU, on a stream of their own; waiting for one lets the current
// stream wait, and not the host.
c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Backend> inner);

} // namespace sim
