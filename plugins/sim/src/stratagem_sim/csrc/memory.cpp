// A caching allocator that reuses a freed block at once, for the stream that it was allocated on, and pinned memory.
#include "runtime.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>

namespace sim {

namespace {

constexpr size_t kGranularity = 512;
// Not a number in every floating dtype, and an index that no tensor has: what is read too early or too late shows.
constexpr int kPoison = 0xFF;

struct Block {
  void* pointer;
  size_t size;
  StreamQueue* owner; // null for pinned memory
  std::vector<Mark> uses; // by other streams than the owner
};

bool is_unused(const Block& block) {
  for (const auto& use : block.uses) {
    if (!use.stream->is_done(use.ticket)) {
      return false;
    }
  }
  return true;
}

size_t rounded(size_t size) {
  return (size + kGranularity - 1) / kGranularity * kGranularity;
}

// A block is filled when it is taken again, in the order of its stream, and not when it is freed: until then, a device
// leaves it as it is. FSDP relies on that: it frees gradients that another stream reads, and lets their stream wait for
// that one before it takes the next block.
void poison(const Block& block) {
  block.owner->enqueue([pointer = block.pointer, size = block.size] { std::memset(pointer, kPoison, size); });
}

using FreeBlocks = std::map<std::pair<StreamQueue*, size_t>, std::vector<Block*>>;

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    auto device = c10::Device(kSim, current_device());
    if (size == 0) {
      return {nullptr, nullptr, &free_block, device};
    }
    auto* block = take(rounded(size), queue_of(current_stream(device.index())));
    return {block->pointer, block, &free_block, device};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_block;
  }

  void copy_data(void* target, const void* source, size_t size) const override {
    queue_of(current_stream(current_device())).enqueue([=] { std::memcpy(target, source, size); });
  }

  bool initialized() override {
    return true;
  }

  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex device = 0; device < settings().device_count; ++device) {
      host_wait_device(device, "empty_cache");
    }
    std::lock_guard<std::mutex> lock(mutex_);
    collect_pending();
    release_free([](StreamQueue*) { return true; });
  }

  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    auto* block = static_cast<Block*>(pointer.get_context());
    // Memory that this allocator did not make, such as a view into host memory, has another deleter.
    if (block == nullptr || pointer.get_deleter() != &free_block) {
      return;
    }
    auto& queue = queue_of(stream);
    if (&queue != block->owner) {
      std::lock_guard<std::mutex> lock(mutex_);
      streams_of_[block].push_back(&queue);
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_[device];
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t total = settings().memory_bytes;
    size_t used = stats_[device].reserved_bytes[0].current;
    return {total - std::min(total, used), total};
  }

 private:
  static void free_block(void* context);

  Block* take(size_t size, StreamQueue& owner) {
    std::unique_lock<std::mutex> lock(mutex_);
    collect_pending();
    auto& stats = stats_[owner.device];
    auto& free = free_[{&owner, size}];
    Block* block = nullptr;
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
      poison(*block);
    } else {
      if (!fits(owner.device, size)) {
        ++stats.num_alloc_retries;
        lock.unlock();
        host_wait_device(owner.device, "memory that is nearly used up");
        lock.lock();
        collect_pending();
        release_free([&](StreamQueue* stream) { return stream->device == owner.device; });
      }
      if (!fits(owner.device, size)) {
        ++stats.num_ooms;
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "sim:", int(owner.device), " out of memory: tried to allocate ", size,
            " bytes, and of ", settings().memory_bytes, " bytes ", stats.allocated_bytes[0].current,
            " are allocated (STRATAGEM_SIM_MEMORY_BYTES sets the limit)");
      }
      void* pointer = std::aligned_alloc(kGranularity, size);
      TORCH_CHECK(pointer != nullptr, "the host has no memory left for sim: ", size, " bytes");
      std::memset(pointer, kPoison, size);
      block = new Block{pointer, size, &owner, {}};
      stats.reserved_bytes[0].increase(size);
      stats.segment[0].increase(1);
      ++stats.num_device_alloc;
    }
    stats.allocation[0].increase(1);
    stats.allocated_bytes[0].increase(size);
    stats.active_bytes[0].increase(size);
    stats.requested_bytes[0].increase(size);
    return block;
  }

  bool fits(c10::DeviceIndex device, size_t size) {
    return stats_[device].reserved_bytes[0].current + int64_t(size) <= settings().memory_bytes;
  }

  void give(Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = stats_[block->owner->device];
    stats.allocation[0].decrease(1);
    stats.allocated_bytes[0].decrease(block->size);
    stats.active_bytes[0].decrease(block->size);
    stats.requested_bytes[0].decrease(block->size);
    auto streams = streams_of_.find(block);
    if (streams != streams_of_.end()) {
      for (auto* stream : streams->second) {
        block->uses.push_back({stream, stream->last_ticket(), nullptr});
      }
      streams_of_.erase(streams);
      pending_.push_back(block);
      return;
    }
    free_[{block->owner, block->size}].push_back(block);
  }

  // Take back what other streams have finished with.
  void collect_pending() {
    std::vector<Block*> still;
    for (auto* block : pending_) {
      if (!is_unused(*block)) {
        still.push_back(block);
        continue;
      }
      block->uses.clear();
      free_[{block->owner, block->size}].push_back(block);
    }
    pending_.swap(still);
  }

  template <typename Chosen>
  void release_free(Chosen chosen) {
    for (auto& [key, blocks] : free_) {
      if (!chosen(key.first)) {
        continue;
      }
      for (auto* block : blocks) {
        // What writes to it may be queued still.
        key.first->wait(key.first->last_ticket());
        auto& stats = stats_[key.first->device];
        stats.reserved_bytes[0].decrease(block->size);
        stats.segment[0].decrease(1);
        ++stats.num_device_free;
        std::free(block->pointer);
        delete block;
      }
      blocks.clear();
    }
  }

  template <typename Call>
  void each_stat(c10::DeviceIndex device, Call call) {
    auto& stats = stats_[device];
    for (auto* stat : {&stats.allocation, &stats.segment, &stats.allocated_bytes, &stats.reserved_bytes,
                       &stats.active_bytes, &stats.requested_bytes}) {
      call((*stat)[0]);
    }
  }

  std::mutex mutex_;
  FreeBlocks free_;
  std::vector<Block*> pending_;
  std::unordered_map<Block*, std::vector<StreamQueue*>> streams_of_;
  std::map<c10::DeviceIndex, c10::CachingDeviceAllocator::DeviceStats> stats_;
};

Allocator& device_allocator() {
  static auto* allocator = new Allocator;
  return *allocator;
}

void Allocator::free_block(void* context) {
  if (context != nullptr) {
    device_allocator().give(static_cast<Block*>(context));
  }
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    std::lock_guard<std::mutex> lock(mutex_);
    collect_pending();
    size = rounded(std::max<size_t>(size, 1));
    auto& free = free_[size];
    Block* block = nullptr;
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    } else {
      block = new Block{std::aligned_alloc(kGranularity, size), size, nullptr, {}};
    }
    used_[reinterpret_cast<uintptr_t>(block->pointer)] = block;
    return {block->pointer, block, &free_block, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_block;
  }

  void copy_data(void* target, const void* source, size_t size) const override {
    std::memcpy(target, source, size);
  }

  // The block in use that has this address; null where the memory is not pinned.
  Block* find(const void* pointer) {
    auto address = reinterpret_cast<uintptr_t>(pointer);
    auto after = used_.upper_bound(address);
    if (after == used_.begin()) {
      return nullptr;
    }
    auto* block = std::prev(after)->second;
    return address < reinterpret_cast<uintptr_t>(block->pointer) + block->size ? block : nullptr;
  }

  std::mutex& mutex() {
    return mutex_;
  }

  // Memory that another allocator made, and that counts as pinned.
  bool add(void* pointer, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    return used_.emplace(reinterpret_cast<uintptr_t>(pointer), new Block{pointer, size, nullptr, {}}).second;
  }

  void remove(void* pointer) {
    Block* block = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = used_.find(reinterpret_cast<uintptr_t>(pointer));
      TORCH_CHECK(found != used_.end(), "memory that was not registered can't be unregistered");
      block = found->second;
      used_.erase(found);
    }
    // Who registered it frees it next.
    for (const auto& use : block->uses) {
      use.stream->wait(use.ticket);
    }
    delete block;
  }

 private:
  static void free_block(void* context);

  void give(Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    used_.erase(reinterpret_cast<uintptr_t>(block->pointer));
    pending_.push_back(block);
    collect_pending();
  }

  void collect_pending() {
    std::vector<Block*> still;
    for (auto* block : pending_) {
      if (is_unused(*block)) {
        block->uses.clear();
        free_[block->size].push_back(block);
      } else {
        still.push_back(block);
      }
    }
    pending_.swap(still);
  }

  std::mutex mutex_;
  std::map<uintptr_t, Block*> used_;
  std::map<size_t, std::vector<Block*>> free_;
  std::vector<Block*> pending_;
};

PinnedAllocator& pinned() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}

void PinnedAllocator::free_block(void* context) {
  pinned().give(static_cast<Block*>(context));
}

const bool is_registered = [] {
  c10::SetAllocator(kSim, &device_allocator());
  return true;
}();

} // namespace

void record_data_ptr(const c10::DataPtr& pointer, const c10::Stream& stream) {
  device_allocator().recordStream(pointer, stream);
}

bool is_pinned(const void* pointer) {
  std::lock_guard<std::mutex> lock(pinned().mutex());
  return pinned().find(pointer) != nullptr;
}

void record_pinned_use(const void* pointer, const c10::Stream& stream) {
  auto& queue = queue_of(stream);
  std::lock_guard<std::mutex> lock(pinned().mutex());
  if (auto* block = pinned().find(pointer)) {
    // Memory that is kept for long is copied to and from again and again: only the last use of each stream counts.
    for (auto& use : block->uses) {
      if (use.stream == &queue) {
        use.ticket = queue.last_ticket();
        return;
      }
    }
    block->uses.push_back({&queue, queue.last_ticket(), nullptr});
  }
}

bool register_host_memory(void* pointer, size_t size) {
  return pinned().add(pointer, size);
}

void unregister_host_memory(void* pointer) {
  pinned().remove(pointer);
}

c10::Allocator* pinned_allocator() {
  return &pinned();
}

} // namespace sim
