// Streams, events, and how the host waits for them.
#include "runtime.h"

#include <Python.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <chrono>
#include <thread>

namespace sim {

namespace {

constexpr size_t kPoolSize = 8;
constexpr auto kMaxDevices = 16;

std::atomic<bool> is_forked{false};
std::atomic<uint64_t> synchronization_count{0};
std::function<void(const std::string&)> synchronization_callback;

std::atomic<bool> keeps_timeline{false};
std::mutex timeline_mutex;
std::vector<Span> timeline;

thread_local c10::DeviceIndex device_of_thread = 0;
thread_local std::array<int64_t, kMaxDevices> stream_of_thread{};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct DeviceStreams {
  std::mutex mutex;
  std::vector<std::unique_ptr<StreamQueue>> queues;
  size_t next_in_pool = 0;
};

// Never destroyed: stream threads outlive static destructors.
std::array<DeviceStreams, kMaxDevices>& device_streams() {
  static auto* all = new std::array<DeviceStreams, kMaxDevices>;
  return *all;
}

StreamQueue& queue_at(c10::DeviceIndex device, size_t id) {
  auto& streams = device_streams().at(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  if (streams.queues.empty()) {
    // The default stream, and the pool.
    for (size_t i = 0; i <= kPoolSize; ++i) {
      streams.queues.push_back(std::make_unique<StreamQueue>(device, i));
    }
  }
  TORCH_CHECK(id < streams.queues.size(), "sim:", int(device), " has no stream ", id);
  return *streams.queues[id];
}

c10::Stream stream_at(c10::DeviceIndex device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, device), id);
}

c10::DeviceIndex checked(c10::DeviceIndex device) {
  if (device < 0) {
    return device_of_thread;
  }
  TORCH_CHECK(
      device < settings().device_count, "there is no sim:", int(device), ": this process has ",
      int(settings().device_count), " (STRATAGEM_SIM_DEVICES)");
  return device;
}

// Run `wait` without Python's lock, which work on other threads may need.
template <typename Wait>
void without_python(Wait wait) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    PyThreadState* state = PyEval_SaveThread();
    wait();
    PyEval_RestoreThread(state);
  } else {
    wait();
  }
}

void count(const std::string& reason) {
  ++synchronization_count;
  if (synchronization_callback) {
    synchronization_callback(reason);
  }
}

} // namespace

Settings& settings() {
  static Settings value;
  return value;
}

StreamQueue::StreamQueue(c10::DeviceIndex device, int64_t id)
    : device(device), id(id), random_(settings().seed * 1000003 + device * 101 + id) {}

uint64_t StreamQueue::enqueue(std::function<void()> work, const char* name) {
  TORCH_CHECK(
      !is_forked, "this process was forked from one that had used the device sim: start it with spawn or forkserver");
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_running_) {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { is_forked = true; }); });
    is_running_ = true;
    std::thread([this] { run(); }).detach();
  }
  tasks_.push_back({std::move(work), std::chrono::steady_clock::now(), name});
  ++enqueued_;
  changed_.notify_all();
  return enqueued_;
}

void StreamQueue::run() {
  // Work was recorded by the host, and may write to tensors that it made in inference mode.
  c10::InferenceMode inference;
  exchange_device(device);
  exchange_stream(stream_at(device, id));
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !tasks_.empty(); });
    if (settings().delay == Delay::kLate) {
      auto deadline = tasks_.front().enqueued + std::chrono::milliseconds(settings().late_ms);
      changed_.wait_until(lock, deadline, [this] { return demanded_ > done_; });
    } else if (settings().delay == Delay::kRandom) {
      auto pause = std::chrono::microseconds(random_() % 200);
      lock.unlock();
      std::this_thread::sleep_for(pause);
      lock.lock();
    }
    auto work = std::move(tasks_.front().work);
    auto name = std::move(tasks_.front().name);
    tasks_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    int64_t begin_ns = now_ns();
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    work = nullptr;
    if (keeps_timeline && !name.empty()) {
      std::lock_guard<std::mutex> timeline_lock(timeline_mutex);
      timeline.push_back({device, id, std::move(name), begin_ns, now_ns()});
    }
    lock.lock();
    if (error && !error_) {
      error_ = error;
    }
    ++done_;
    changed_.notify_all();
  }
}

bool StreamQueue::is_done(uint64_t ticket) {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_ >= ticket;
}

void StreamQueue::demand(uint64_t ticket) {
  std::lock_guard<std::mutex> lock(mutex_);
  demanded_ = std::max(demanded_, ticket);
  changed_.notify_all();
}

void StreamQueue::wait(uint64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  demanded_ = std::max(demanded_, ticket);
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

uint64_t StreamQueue::last_ticket() {
  std::lock_guard<std::mutex> lock(mutex_);
  return enqueued_;
}

void StreamQueue::raise_error() {
  std::exception_ptr error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(error, error_);
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

StreamQueue& queue_of(const c10::Stream& stream) {
  return queue_at(stream.device_index(), stream.id());
}

c10::Stream default_stream(c10::DeviceIndex device) {
  return stream_at(checked(device), 0);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  device = checked(device);
  return stream_at(device, stream_of_thread.at(device));
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  auto device = checked(stream.device_index());
  auto before = stream_at(device, stream_of_thread.at(device));
  stream_of_thread.at(device) = stream.id();
  return before;
}

c10::Stream pool_stream(c10::DeviceIndex device) {
  device = checked(device);
  queue_at(device, 0);
  auto& streams = device_streams().at(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  return stream_at(device, 1 + streams.next_in_pool++ % kPoolSize);
}

c10::Stream new_stream(c10::DeviceIndex device) {
  device = checked(device);
  queue_at(device, 0);
  auto& streams = device_streams().at(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  streams.queues.push_back(std::make_unique<StreamQueue>(device, streams.queues.size()));
  return stream_at(device, streams.queues.size() - 1);
}

c10::DeviceIndex current_device() {
  return device_of_thread;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  return std::exchange(device_of_thread, checked(device));
}

Mark record(StreamQueue& stream) {
  auto time = std::make_shared<std::atomic<int64_t>>(0);
  auto ticket = stream.enqueue([time] { *time = now_ns(); });
  return {&stream, ticket, time};
}

void block(const Mark& mark, StreamQueue& stream) {
  if (mark.stream != nullptr && mark.stream != &stream) {
    stream.enqueue([mark] { mark.stream->wait(mark.ticket); });
  }
}

void host_wait(const Mark& mark, const std::string& reason) {
  count(reason);
  if (mark.stream != nullptr) {
    without_python([&] { mark.stream->wait(mark.ticket); });
    mark.stream->raise_error();
  }
}

void host_wait(const c10::Stream& stream, const std::string& reason) {
  auto& queue = queue_of(stream);
  host_wait(Mark{&queue, queue.last_ticket(), nullptr}, reason);
}

static std::vector<StreamQueue*> queues_of(c10::DeviceIndex device) {
  auto& streams = device_streams().at(device);
  std::lock_guard<std::mutex> lock(streams.mutex);
  std::vector<StreamQueue*> queues;
  for (auto& queue : streams.queues) {
    queues.push_back(queue.get());
  }
  return queues;
}

void host_wait_device(c10::DeviceIndex device, const std::string& reason) {
  count(reason);
  auto queues = queues_of(checked(device));
  without_python([&] {
    for (auto* queue : queues) {
      queue->wait(queue->last_ticket());
    }
  });
  for (auto* queue : queues) {
    queue->raise_error();
  }
}

void finish(const c10::Stream& stream) {
  auto& queue = queue_of(stream);
  without_python([&] { queue.wait(queue.last_ticket()); });
}

void drain() {
  if (is_forked) {
    return;
  }
  without_python([] {
    for (c10::DeviceIndex device = 0; device < settings().device_count; ++device) {
      for (auto* queue : queues_of(device)) {
        queue->wait(queue->last_ticket());
      }
    }
  });
}

std::vector<Span> start_timeline() {
  keeps_timeline = true;
  std::lock_guard<std::mutex> lock(timeline_mutex);
  return std::exchange(timeline, {});
}

std::vector<Span> stop_timeline() {
  keeps_timeline = false;
  std::lock_guard<std::mutex> lock(timeline_mutex);
  return std::exchange(timeline, {});
}

uint64_t synchronizations() {
  return synchronization_count;
}

void set_synchronization_callback(std::function<void(const std::string&)> callback) {
  synchronization_callback = std::move(callback);
}

} // namespace sim
