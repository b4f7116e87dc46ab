#include "process_group.h"
#include "runtime.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>

#include <map>

namespace sim {

at::Tensor host_view(const at::Tensor& tensor);

namespace {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

Tensors host_views(const Tensors& tensors) {
  Tensors views;
  for (const auto& tensor : tensors) {
    views.push_back(host_view(tensor));
  }
  return views;
}

TensorLists host_views(const TensorLists& lists) {
  TensorLists views;
  for (const auto& list : lists) {
    views.push_back(host_views(list));
  }
  return views;
}

Tensors flat(const TensorLists& lists) {
  Tensors all;
  for (const auto& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

class Work final : public c10d::Work {
 public:
  Work(int rank, c10d::OpType type, c10::Stream stream, Tensors outputs)
      : c10d::Work(rank, type), stream_(stream), end_(record(queue_of(stream))), outputs_(std::move(outputs)) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{stream.device()});
    // The future is complete on the host at once; whoever takes its value lets a stream wait for this one.
    c10::StreamGuard guard(stream);
    future_->markCompleted(c10::IValue(outputs_));
  }

  bool isCompleted() override {
    bool is_done = end_.stream->is_done(end_.ticket);
    end_.stream->demand(end_.ticket);
    return is_done;
  }
  bool isSuccess() const override {
    return end_.stream->is_done(end_.ticket);
  }
  Tensors result() override {
    return outputs_;
  }
  void synchronize() override {
    block(end_, queue_of(current_stream(stream_.device_index())));
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    if (retrieveOpType() == c10d::OpType::BARRIER) {
      host_wait(end_, "barrier");
    }
    return true;
  }
  void blockCurrentStream() override {
    synchronize();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  c10::Stream stream_;
  Mark end_;
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class Backend final : public c10d::Backend {
 public:
  explicit Backend(c10::intrusive_ptr<c10d::Backend> inner)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override {
    return "sim";
  }

  void setSequenceNumberForGroup() override {
    inner_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return inner_->getSequenceNumberForGroup();
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    inner_->setTimeout(timeout);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return launch(c10d::OpType::BROADCAST, tensors, tensors, [=, views = host_views(tensors)](auto& inner) mutable {
      inner.broadcast(views, options)->wait();
    });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return launch(c10d::OpType::ALLREDUCE, tensors, tensors, [=, views = host_views(tensors)](auto& inner) mutable {
      inner.allreduce(views, options)->wait();
    });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return launch(
        c10d::OpType::ALLREDUCE_COALESCED, tensors, tensors, [=, views = host_views(tensors)](auto& inner) mutable {
          inner.allreduce_coalesced(views, options)->wait();
        });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return launch(c10d::OpType::REDUCE, tensors, tensors, [=, views = host_views(tensors)](auto& inner) mutable {
      inner.reduce(views, options)->wait();
    });
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return launch(
        c10d::OpType::ALLGATHER, inputs, flat(outputs),
        [=, to = host_views(outputs), from = host_views(inputs)](auto& inner) mutable {
          inner.allgather(to, from, options)->wait();
        });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return launch(
        c10d::OpType::_ALLGATHER_BASE, {input}, {output},
        [=, to = host_view(output), from = host_view(input)](auto& inner) mutable {
          inner._allgather_base(to, from, options)->wait();
        });
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return launch(
        c10d::OpType::COALESCED, inputs, outputs,
        [=, to = host_views(outputs), from = host_views(inputs)](auto& inner) mutable {
          inner.allgather_into_tensor_coalesced(to, from, options)->wait();
        });
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return launch(
        c10d::OpType::GATHER, inputs, flat(outputs),
        [=, to = host_views(outputs), from = host_views(inputs)](auto& inner) mutable {
          inner.gather(to, from, options)->wait();
        });
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
    return launch(
        c10d::OpType::SCATTER, flat(inputs), outputs,
        [=, to = host_views(outputs), from = host_views(inputs)](auto& inner) mutable {
          inner.scatter(to, from, options)->wait();
        });
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override {
    return launch(
        c10d::OpType::REDUCE_SCATTER, flat(inputs), outputs,
        [=, to = host_views(outputs), from = host_views(inputs)](auto& inner) mutable {
          inner.reduce_scatter(to, from, options)->wait();
        });
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return launch(
        c10d::OpType::_REDUCE_SCATTER_BASE, {input}, {output},
        [=, to = host_view(output), from = host_view(input)](auto& inner) mutable {
          inner._reduce_scatter_base(to, from, options)->wait();
        });
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    return launch(
        c10d::OpType::COALESCED, inputs, outputs,
        [=, to = host_views(outputs), from = host_views(inputs)](auto& inner) mutable {
          inner.reduce_scatter_tensor_coalesced(to, from, options)->wait();
        });
  }
  WorkPtr alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    return launch(
        c10d::OpType::ALLTOALL_BASE, {input}, {output},
        [=, to = host_view(output), from = host_view(input), to_sizes = output_sizes,
         from_sizes = input_sizes](auto& inner) mutable {
          inner.alltoall_base(to, from, to_sizes, from_sizes, options)->wait();
        });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return launch(
        c10d::OpType::ALLTOALL, inputs, outputs,
        [=, to = host_views(outputs), from = host_views(inputs)](auto& inner) mutable {
          inner.alltoall(to, from, options)->wait();
        });
  }
  // Messages have a stream for each peer and direction: two ranks that both send first would wait for ever in one.
  WorkPtr send(Tensors& tensors, int rank, int tag) override {
    return launch(
        c10d::OpType::SEND, tensors, {},
        [=, views = host_views(tensors)](auto& inner) mutable { inner.send(views, rank, tag)->wait(); }, rank);
  }
  WorkPtr recv(Tensors& tensors, int rank, int tag) override {
    return launch(
        c10d::OpType::RECV, {}, tensors,
        [=, views = host_views(tensors)](auto& inner) mutable { inner.recv(views, rank, tag)->wait(); }, rank);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    auto copy = options;
    copy.device_ids.clear();
    copy.device.reset();
    return launch(c10d::OpType::BARRIER, {}, {}, [copy](auto& inner) { inner.barrier(copy)->wait(); });
  }

 private:
  template <typename Run>
  WorkPtr launch(c10d::OpType type, const Tensors& inputs, const Tensors& outputs, Run run, int peer = -1) {
    const auto& first = inputs.empty() ? outputs : inputs;
    auto device = first.empty() ? current_device() : first[0].device().index();
    auto stream = stream_for(device, type, peer);
    auto& queue = queue_of(stream);
    block(record(queue_of(current_stream(device))), queue);
    queue.enqueue([inner = inner_.get(), run]() mutable { run(*inner); });
    for (const auto* tensors : {&inputs, &outputs}) {
      for (const auto& tensor : *tensors) {
        record_data_ptr(tensor.storage().data_ptr(), stream);
      }
    }
    return c10::make_intrusive<Work>(getRank(), type, stream, outputs);
  }

  c10::Stream stream_for(c10::DeviceIndex device, c10d::OpType type, int peer) {
    auto key = std::make_tuple(device, peer < 0 ? c10d::OpType::UNKNOWN : type, peer);
    auto found = streams_.find(key);
    return found != streams_.end() ? found->second : streams_.emplace(key, new_stream(device)).first->second;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::map<std::tuple<c10::DeviceIndex, c10d::OpType, int>, c10::Stream> streams_;

 public:
  ~Backend() override {
    // Queued work uses the inner backend.
    for (const auto& [key, stream] : streams_) {
      finish(stream);
    }
  }
};

} // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(c10::intrusive_ptr<c10d::Backend> inner) {
  return c10::make_intrusive<Backend>(std::move(inner));
}

} // namespace sim
