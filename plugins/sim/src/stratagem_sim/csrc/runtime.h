// Streams, events and memory of the device `sim`. Device memory is host memory: what makes it a device is *when*
// work runs, which a stream's thread decides.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sim {

constexpr c10::DeviceType kSim = c10::DeviceType::PrivateUse1;

enum class Delay {
  kNone,
  kRandom, // a time drawn from the seed, before each piece of work
  kLate, // not before someone waits for it, or `late_ms` have passed: a device always makes progress
};

struct Settings {
  c10::DeviceIndex device_count = 2;
  Delay delay = Delay::kNone;
  uint64_t seed = 0;
  int64_t late_ms = 20;
  int64_t memory_bytes = int64_t{1} << 40; // per device
};
Settings& settings();

// A queue of work and the thread that runs it in order. Work holds raw addresses and no tensors: a tensor that is
// released on this thread would need Python's lock or the allocator's, which the thread that waits may hold.
class StreamQueue {
 public:
  StreamQueue(c10::DeviceIndex device, int64_t id);

  // Add work, and return its ticket. `name` is what the timeline calls it.
  uint64_t enqueue(std::function<void()> work, const char* name = "");
  bool is_done(uint64_t ticket);
  // Wait until the work with this ticket has run. For other streams' threads; the host waits by `host_wait`.
  void wait(uint64_t ticket);
  // Let work up to this ticket run, however late the stream wants to be.
  void demand(uint64_t ticket);
  uint64_t last_ticket();
  // Raise the first error of this stream's work, once.
  void raise_error();

  const c10::DeviceIndex device;
  const int64_t id;

 private:
  struct Task {
    std::function<void()> work;
    std::chrono::steady_clock::time_point enqueued;
    std::string name;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;
  uint64_t demanded_ = 0;
  bool is_running_ = false;
  std::exception_ptr error_;
  std::mt19937_64 random_;
};

// Work that has run: when, by a clock in nanoseconds, and on which stream.
struct Span {
  c10::DeviceIndex device;
  int64_t stream;
  std::string name;
  int64_t begin_ns;
  int64_t end_ns;
};
// Keep a span of all work with a name that runs from now on, and return those kept so far.
std::vector<Span> start_timeline();
std::vector<Span> stop_timeline();

// A place in a stream's queue.
struct Mark {
  StreamQueue* stream = nullptr;
  uint64_t ticket = 0;
  std::shared_ptr<std::atomic<int64_t>> time_ns;
};

StreamQueue& queue_of(const c10::Stream& stream);
c10::Stream default_stream(c10::DeviceIndex device);
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(const c10::Stream& stream);
c10::Stream pool_stream(c10::DeviceIndex device);
// A stream of its own, which the pool never returns.
c10::Stream new_stream(c10::DeviceIndex device);

c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);

Mark record(StreamQueue& stream);
void block(const Mark& mark, StreamQueue& stream);

// Let the host wait, without Python's lock, and count it. `reason` is what asked, as "aten::item".
void host_wait(const Mark& mark, const std::string& reason);
void host_wait(const c10::Stream& stream, const std::string& reason);
void host_wait_device(c10::DeviceIndex device, const std::string& reason);
// Wait for a stream, uncounted.
void finish(const c10::Stream& stream);
// Wait for all devices, uncounted; called before the process exits.
void drain();

uint64_t synchronizations();
void set_synchronization_callback(std::function<void(const std::string&)> callback);

void record_data_ptr(const c10::DataPtr& pointer, const c10::Stream& stream);
bool is_pinned(const void* pointer);
// Keep the pinned block from being reused until work queued so far on `stream` is done.
void record_pinned_use(const void* pointer, const c10::Stream& stream);
c10::Allocator* pinned_allocator();
// Let memory of the host, which another allocator made, count as pinned until it is unregistered.
bool register_host_memory(void* pointer, size_t size);
void unregister_host_memory(void* pointer);

} // namespace sim
