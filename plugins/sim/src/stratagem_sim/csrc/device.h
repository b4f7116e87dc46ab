// What operators need of the device's generators.
#pragma once

#include <ATen/core/Generator.h>

namespace sim {

const at::Generator& default_generator(c10::DeviceIndex device);
// A generator of the CPU for one operator, seeded from the next position of `generator`: work that runs late or on
// several streams draws the same values as work that runs at once.
at::Generator draw(const at::Generator& generator);

} // namespace sim
