// The device as PyTorch asks for it: guard, hooks and generators.
#include "device.h"
#include "runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>

namespace sim {

namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kSim;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kSim, exchange_device(device.index())};
  }
  c10::Device getDevice() const override {
    return {kSim, current_device()};
  }
  void setDevice(c10::Device device) const override {
    exchange_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    exchange_device(device.index());
  }
  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return pool_stream(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return pool_stream(device.index());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_stream(stream);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Mark;
    }
    *static_cast<Mark*>(*event) = sim::record(queue_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      sim::block(*static_cast<Mark*>(event), queue_of(stream));
    }
  }
  bool queryEvent(void* event) const override {
    auto* mark = static_cast<Mark*>(event);
    if (mark == nullptr || mark->stream == nullptr || mark->stream->is_done(mark->ticket)) {
      return true;
    }
    // Who polls waits, too: it may see "not yet" once, but not for ever.
    mark->stream->demand(mark->ticket);
    return false;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return settings().device_count;
  }
  bool queryStream(const c10::Stream& stream) const override {
    auto& queue = queue_of(stream);
    auto ticket = queue.last_ticket();
    bool is_done = queue.is_done(ticket);
    queue.demand(ticket);
    return is_done;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    host_wait(stream, "Stream.synchronize");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      host_wait(*static_cast<Mark*>(event), "Event.synchronize");
    }
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    host_wait_device(device, "synchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    record_data_ptr(pointer, stream);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "elapsed_time needs two events that were recorded");
    auto& from = *static_cast<Mark*>(start);
    auto& to = *static_cast<Mark*>(end);
    TORCH_CHECK(queryEvent(start) && queryEvent(end), "elapsed_time needs two events that are done");
    return double(to.time_ns->load() - from.time_ns->load()) / 1e6;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Its state is a seed and a position, so that the host knows it without waiting for the device.
struct GeneratorImpl final : c10::GeneratorImpl {
  explicit GeneratorImpl(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(kSim, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t value) override {
    seed_ = value;
    offset_ = 0;
  }
  void set_offset(uint64_t value) override {
    offset_ = value;
  }
  uint64_t get_offset() const override {
    return offset_;
  }
  uint64_t current_seed() const override {
    return seed_;
  }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(
        state.numel() == 2 * sizeof(uint64_t) && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
        "the state of a generator on sim is a tensor of 16 bytes");
    auto* values = static_cast<const uint64_t*>(state.data());
    seed_ = values[0];
    offset_ = values[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({2 * sizeof(uint64_t)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* values = static_cast<uint64_t*>(state.data_ptr());
    values[0] = seed_;
    values[1] = offset_;
    return state.getIntrusivePtr();
  }
  uint64_t next() {
    std::lock_guard<std::mutex> lock(mutex_);
    // splitmix64: neighbouring positions give unrelated seeds.
    uint64_t value = seed_ + 0x9E3779B97F4A7C15ULL * ++offset_;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
    return value ^ (value >> 31);
  }

 private:
  GeneratorImpl* clone_impl() const override {
    auto* copy = new GeneratorImpl(device_.index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return settings().device_count;
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    exchange_device(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<GeneratorImpl>(device < 0 ? current_device() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    auto device = exchange_device(storage.device().index());
    auto data = storage.allocator()->allocate(size);
    size_t kept = std::min(size, impl->nbytes());
    if (kept > 0) {
      storage.allocator()->copy_data(data.get(), impl->data(), kept);
    }
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(size);
    exchange_device(device);
  }
};

const bool are_hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

} // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* generators = [] {
    auto* all = new std::array<at::Generator, 16>;
    for (size_t i = 0; i < all->size(); ++i) {
      (*all)[i] = at::make_generator<GeneratorImpl>(i);
    }
    return all;
  }();
  return generators->at(device < 0 ? current_device() : device);
}

at::Generator draw(const at::Generator& generator) {
  TORCH_CHECK(generator.device().type() == kSim, "expected a generator on sim, and got one on ", generator.device());
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<GeneratorImpl*>(generator.unsafeGetGeneratorImpl())->next());
}

} // namespace sim
