// Operators: each runs the CPU's kernel on the thread of the current stream. What its results look like is asked of
// PyTorch's meta kernels, so that the host goes on; where those can't say, the host waits, and that is counted.
#include "device.h"
#include "runtime.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>

namespace sim {

namespace {

using Stack = torch::jit::Stack;

bool is_sim(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSim;
}

at::Tensor with_storage(const at::Tensor& tensor, c10::Storage storage, c10::DispatchKey key) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  // Matrix products and copies get views that are conjugated or negated as these are, and read such marks.
  result._set_conj(tensor.is_conj());
  result._set_neg(tensor.is_neg());
  return result;
}

} // namespace

// A tensor of the CPU at the same address, which keeps nothing alive.
at::Tensor host_view(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  c10::DataPtr pointer(const_cast<void*>(storage.data()), c10::Device(c10::kCPU));
  return with_storage(
      tensor,
      c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(pointer), nullptr, false),
      c10::DispatchKey::CPU);
}

namespace {

at::Tensor meta_view(const at::Tensor& tensor) {
  auto* allocator = c10::GetAllocator(c10::kMeta);
  return with_storage(
      tensor,
      c10::Storage(
          c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), allocator->allocate(0), allocator, true),
      c10::DispatchKey::Meta);
}

// What the stream gets of an argument on the CPU: its own copy, for the host may change or free the original.
at::Tensor host_copy(const at::Tensor& tensor) {
  auto copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().pinned_memory(false));
  copy.copy_(tensor);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

// Replace the tensors in a value, in lists too.
template <typename Call>
c10::IValue map_tensors(const c10::IValue& value, Call call) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(call(value.toTensor())) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      result.push_back(tensor.defined() ? call(tensor) : tensor);
    }
    return result;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> result;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      result.push_back(tensor.has_value() && tensor->defined() ? std::optional(call(*tensor)) : tensor);
    }
    return result;
  }
  return value;
}

template <typename Call>
void for_tensors(const c10::IValue& value, Call call) {
  map_tensors(value, [&](const at::Tensor& tensor) {
    call(tensor);
    return tensor;
  });
}

std::vector<at::Tensor> tensors_of(const Stack& values) {
  std::vector<at::Tensor> result;
  for (const auto& value : values) {
    for_tensors(value, [&](const at::Tensor& tensor) { result.push_back(tensor); });
  }
  return result;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_tensor_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::ListType) {
    return is_tensor_type(type->expectRef<c10::ListType>().getElementType());
  }
  if (type->kind() == c10::TypeKind::OptionalType) {
    return is_tensor_type(type->expectRef<c10::OptionalType>().getElementType());
  }
  return type->kind() == c10::TypeKind::TensorType;
}

bool is_generator_type(const c10::TypePtr& type) {
  return type->str().find("Generator") != std::string::npos;
}

c10::Device device_of(const Stack& arguments) {
  std::optional<c10::Device> device;
  for (const auto& tensor : tensors_of(arguments)) {
    if (!is_sim(tensor)) {
      continue;
    }
    TORCH_CHECK(
        !device || *device == tensor.device(),
        "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
        tensor.device(), "!");
    device = tensor.device();
  }
  for (const auto& argument : arguments) {
    if (!device && argument.isDevice() && argument.toDevice().type() == kSim) {
      device = argument.toDevice();
    }
  }
  return device.value_or(c10::Device(kSim, -1));
}

// The arguments as the stream's thread needs them.
Stack host_arguments(const c10::FunctionSchema& schema, const Stack& arguments, c10::Device device) {
  Stack result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    if (argument.isDevice()) {
      result.emplace_back(c10::Device(c10::kCPU));
    } else if (is_generator_type(schema.arguments()[i].type())) {
      result.emplace_back(draw(argument.isNone() ? default_generator(device.index()) : argument.toGenerator()));
    } else {
      result.push_back(map_tensors(argument, [](const at::Tensor& tensor) {
        if (is_sim(tensor)) {
          return host_view(tensor);
        }
        TORCH_CHECK(
            tensor.device().is_cpu() && tensor.dim() == 0,
            "Expected all tensors to be on the same device, but found at least two devices, sim and ",
            tensor.device(), "!");
        return host_copy(tensor);
      }));
    }
  }
  return result;
}

bool is_one_of(const c10::OperatorHandle& op, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), op.schema().name()) != names.end();
}

// The CPU's kernels of norms keep statistics in the input's type, unless parameters have another one. PyTorch's meta
// kernels say what CUDA's do.
void take_types_of_statistics(const c10::OperatorHandle& op, const Stack& arguments, Stack& metas) {
  if (!is_one_of(op, {"aten::native_layer_norm", "aten::native_group_norm", "aten::native_batch_norm"})) {
    return;
  }
  auto type = arguments[0].toTensor().scalar_type();
  for (const auto& tensor : tensors_of(arguments)) {
    if (tensor.scalar_type() != type) {
      return;
    }
  }
  for (size_t i = 1; i < metas.size(); ++i) {
    metas[i] = metas[i].toTensor().to(type);
  }
}

// What the results look like, as meta tensors; none where only the values can say.
std::optional<Stack> meta_results(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isDevice()) {
      stack.emplace_back(c10::Device(c10::kMeta));
    } else if (is_generator_type(op.schema().arguments()[i].type())) {
      stack.emplace_back();
    } else {
      stack.push_back(map_tensors(arguments[i], [](const at::Tensor& tensor) {
        // A number stays on the CPU, where meta kernels take it as one.
        return is_sim(tensor) ? meta_view(tensor) : tensor;
      }));
    }
  }
  // Bags have other results on the CPU than the meta kernel says.
  if (is_one_of(op, {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"})) {
    return std::nullopt;
  }
  try {
    op.callBoxed(&stack);
  } catch (const std::exception&) {
    // There is no meta kernel, or the arguments are wrong: the CPU's kernel says so in its own words.
    return std::nullopt;
  }
  for (const auto& tensor : tensors_of(stack)) {
    if (tensor.defined() && !tensor.is_meta()) {
      return std::nullopt;
    }
  }
  take_types_of_statistics(op, arguments, stack);
  return stack;
}

// The argument that return value `index` is, by the schema; none for a new tensor.
std::optional<size_t> aliased_argument(const c10::FunctionSchema& schema, size_t index) {
  const auto* alias = schema.returns()[index].alias_info();
  if (alias == nullptr) {
    return std::nullopt;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* other = schema.arguments()[i].alias_info();
    if (other != nullptr && other->beforeSets() == alias->beforeSets()) {
      return i;
    }
  }
  return std::nullopt;
}

at::Tensor empty_like_meta(const at::Tensor& meta, c10::Device device) {
  return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(device));
}

// Give what an operator returns from `results` and, for what the schema says is an argument, from the arguments.
template <typename Make>
void push_results(const c10::FunctionSchema& schema, const Stack& arguments, const Stack& results, Stack* stack, Make make) {
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (auto argument = aliased_argument(schema, i)) {
      stack->push_back(arguments[*argument]);
    } else {
      stack->push_back(map_tensors(results.at(i), make));
    }
  }
}

void run_and_wait(const c10::OperatorHandle& op, const Stack& arguments, c10::Device device, Stack* stack) {
  auto results = host_arguments(op.schema(), arguments, device);
  host_wait(current_stream(device.index()), op.schema().name());
  op.callBoxed(&results);
  push_results(op.schema(), arguments, results, stack, [&](const at::Tensor& value) {
    auto tensor = empty_like_meta(value, device);
    queue_of(current_stream(device.index())).enqueue([target = host_view(tensor), value = host_copy(value)] {
      target.copy_(value);
    });
    return tensor;
  });
}

void resize_outputs(const c10::FunctionSchema& schema, const Stack& arguments, const Stack& metas) {
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    auto argument = aliased_argument(schema, i);
    if (!argument || !arguments[*argument].isTensor() || !metas.at(i).isTensor()) {
      continue;
    }
    const auto& output = arguments[*argument].toTensor();
    const auto& meta = metas.at(i).toTensor();
    if (output.sizes() != meta.sizes()) {
      at::native::resize_(output, meta.sizes(), std::nullopt);
    }
  }
}

void run_on_stream(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  Stack arguments = torch::jit::pop(*stack, schema.arguments().size());
  at::AutoDispatchBelowAutograd guard;
  auto device = device_of(arguments);
  c10::OptionalDeviceGuard device_guard(device.has_index() ? std::optional(device) : std::nullopt);
  device = c10::Device(kSim, current_device());

  bool is_in_place = true;
  bool has_outputs = false;
  bool is_known = true;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    is_in_place = is_in_place && aliased_argument(schema, i).has_value();
    is_known = is_known && is_tensor_type(schema.returns()[i].type());
  }
  for (const auto& argument : schema.arguments()) {
    has_outputs = has_outputs || (is_written(argument) && argument.kwarg_only());
  }
  std::optional<Stack> metas;
  if (!is_known || ((!is_in_place || has_outputs) && !(metas = meta_results(op, arguments)))) {
    run_and_wait(op, arguments, device, stack);
    return;
  }
  if (has_outputs) {
    resize_outputs(schema, arguments, *metas);
  }
  auto values = host_arguments(schema, arguments, device);
  size_t first = stack->size();
  push_results(schema, arguments, metas.value_or(Stack()), stack, [&](const at::Tensor& meta) {
    return empty_like_meta(meta, device);
  });
  std::vector<std::optional<std::vector<at::Tensor>>> targets;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    targets.emplace_back();
    if (!aliased_argument(schema, i)) {
      targets.back().emplace();
      for_tensors((*stack)[first + i], [&](const at::Tensor& tensor) {
        targets.back()->push_back(host_view(tensor));
      });
    }
  }
  queue_of(current_stream(device.index())).enqueue([op, values, targets]() mutable {
    op.callBoxed(&values);
    for (size_t i = 0; i < targets.size(); ++i) {
      if (!targets[i]) {
        continue;
      }
      size_t next = 0;
      for_tensors(values.at(i), [&](const at::Tensor& value) {
        if (next >= targets[i]->size()) {
          return;
        }
        auto& target = (*targets[i])[next++];
        // Statistics that the CPU's kernel leaves out, as those of a batch in evaluation.
        if (value.numel() == 0) {
          return;
        }
        TORCH_CHECK(
            target.sizes() == value.sizes(), op.schema().name(), " has a result of the shape ", value.sizes(),
            " on the CPU, and PyTorch's meta kernel said ", target.sizes());
        target.copy_(value);
      });
    }
  }, schema.name().c_str());
}

void run_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  run_on_stream(op, stack);
}

const c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// PyTorch sends convolutions of devices like this one to operators of their own.
void run_convolution(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  run_on_stream(find("aten::convolution"), stack);
}

void run_convolution_backward(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  auto arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  c10::IValue bias_sizes;
  if (arguments.back().toBoolList().get(2)) {
    bias_sizes = std::vector<int64_t>{arguments[0].toTensor().size(1)};
  }
  arguments.insert(arguments.begin() + 3, bias_sizes);
  stack->insert(stack->end(), arguments.begin(), arguments.end());
  run_on_stream(find("aten::convolution_backward"), stack);
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_generic(
      size, c10::GetAllocator(kSim), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return at::detail::empty_strided_generic(
      size, stride, c10::GetAllocator(kSim), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

void copy_to_device(const at::Tensor& source, const at::Tensor& target, bool is_non_blocking) {
  auto stream = current_stream(target.device().index());
  const void* address = source.storage().data();
  if (is_pinned(address)) {
    queue_of(stream).enqueue([from = host_view(source), to = host_view(target)] { to.copy_(from); }, "copy to the device");
    record_pinned_use(address, stream);
  } else {
    // Pageable memory is staged: the host may change it as soon as this returns.
    queue_of(stream).enqueue([from = host_copy(source), to = host_view(target)] { to.copy_(from); }, "copy to the device");
  }
  if (!is_non_blocking) {
    host_wait(stream, "copy to the device");
  }
}

void copy_to_host(const at::Tensor& source, const at::Tensor& target, bool is_non_blocking) {
  auto stream = current_stream(source.device().index());
  const void* address = target.storage().data();
  queue_of(stream).enqueue([from = host_view(source), to = host_view(target)] { to.copy_(from); }, "copy to the host");
  if (is_non_blocking && is_pinned(address)) {
    record_pinned_use(address, stream);
  } else {
    host_wait(stream, "copy to the host");
  }
}

void copy_between(const at::Tensor& source, const at::Tensor& target) {
  auto& from_queue = queue_of(current_stream(source.device().index()));
  auto& to_queue = queue_of(current_stream(target.device().index()));
  block(record(to_queue), from_queue);
  from_queue.enqueue([from = host_view(source), to = host_view(target)] { to.copy_(from); }, "copy");
  block(record(from_queue), to_queue);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool is_non_blocking) {
  at::AutoDispatchBelowAutograd guard;
  if (source.numel() == 0) {
    return target;
  }
  auto from = source.sizes() == target.sizes() ? source : source.expand(target.sizes());
  if (!is_sim(from)) {
    copy_to_device(from, target, is_non_blocking);
  } else if (!is_sim(target)) {
    copy_to_host(from, target, is_non_blocking);
  } else {
    copy_between(from, target);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

// The CPU's kernel draws from the default generator of the CPU, and has no other.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> is_training) {
  if (!is_training.value_or(true) || p == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

// PyTorch has fused cells for devices like this one, and the CPU has none: the same from single operators.
using Optional = const std::optional<at::Tensor>&;

at::Tensor biased(const at::Tensor& gates, Optional bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input, const at::Tensor& hidden, const at::Tensor& cell, Optional input_bias, Optional hidden_bias) {
  auto gates = (biased(input, input_bias) + biased(hidden, hidden_bias)).chunk(4, 1);
  auto in = gates[0].sigmoid(), forget = gates[1].sigmoid(), update = gates[2].tanh(), out = gates[3].sigmoid();
  auto next = forget * cell + in * update;
  return {out * next.tanh(), next, at::cat({in, forget, update, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    Optional hidden_gradient, Optional cell_gradient, const at::Tensor& cell, const at::Tensor& next,
    const at::Tensor& workspace, bool has_bias) {
  auto gates = workspace.chunk(4, 1);
  auto in = gates[0], forget = gates[1], update = gates[2], out = gates[3];
  auto tanh = next.tanh();
  auto of_cell = cell_gradient && cell_gradient->defined() ? *cell_gradient : at::zeros_like(next);
  auto of_out = at::zeros_like(next);
  if (hidden_gradient && hidden_gradient->defined()) {
    of_out = *hidden_gradient * tanh * out * (1 - out);
    of_cell = of_cell + *hidden_gradient * out * (1 - tanh * tanh);
  }
  auto of_gates = at::cat(
      {of_cell * update * in * (1 - in), of_cell * cell * forget * (1 - forget), of_cell * in * (1 - update * update),
       of_out},
      1);
  return {of_gates, of_cell * forget, has_bias ? of_gates.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input, const at::Tensor& hidden, const at::Tensor& state, Optional input_bias, Optional hidden_bias) {
  auto inputs = biased(input, input_bias).chunk(3, 1), hiddens = biased(hidden, hidden_bias).chunk(3, 1);
  auto reset = (inputs[0] + hiddens[0]).sigmoid(), keep = (inputs[1] + hiddens[1]).sigmoid();
  auto next = (inputs[2] + reset * hiddens[2]).tanh();
  return {(state - next) * keep + next, at::cat({reset, keep, next, state, hiddens[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& gradient, const at::Tensor& workspace, bool has_bias) {
  auto kept = workspace.chunk(5, 1);
  auto reset = kept[0], keep = kept[1], next = kept[2], state = kept[3], hidden = kept[4];
  auto of_next = gradient * (1 - keep) * (1 - next * next);
  auto of_keep = gradient * (state - next) * keep * (1 - keep);
  auto of_reset = of_next * hidden * reset * (1 - reset);
  auto of_inputs = at::cat({of_reset, of_keep, of_next}, 1);
  auto of_hiddens = at::cat({of_reset, of_keep, of_next * reset}, 1);
  auto sum = [&](const at::Tensor& gates) { return has_bias ? gates.sum(0) : at::Tensor(); };
  return {of_inputs, of_hiddens, gradient * keep, sum(of_inputs), sum(of_hiddens)};
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  record_data_ptr(tensor.storage().data_ptr(), stream);
}

at::Tensor& set_storage(
    at::Tensor& tensor, c10::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_meta__symint(
      tensor, std::move(storage), offset, c10::fromIntArrayRefSlow(size), c10::fromIntArrayRefSlow(stride));
}

at::Tensor& set_whole_storage(at::Tensor& tensor, c10::Storage storage) {
  int64_t size = storage.nbytes() / tensor.itemsize();
  return set_storage(tensor, std::move(storage), 0, {size}, {1});
}

at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& source) {
  return set_storage(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& tensor) {
  return set_tensor(tensor, at::empty({0}, tensor.options()));
}

// `Module.to` and FSDP give a parameter the data of its copy on the device, as they may between CPU and CUDA. PyTorch
// doesn't know that of such a device, and would make a new parameter, which loses its ties.
bool has_compatible_type(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.layout() == c10::kStrided && other.layout() == c10::kStrided && !tensor.is_meta() && !other.is_meta();
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_type);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_type);
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("_reshape_alias", [](const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
    return at::native::as_strided_tensorimpl(self, size, stride, std::nullopt);
  });
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("native_dropout", &native_dropout);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  // The CPU's kernels, in place of those that PyTorch composes for a device that has none.
  for (const char* norm : {"native_layer_norm", "native_group_norm"}) {
    m.impl(norm, torch::CppFunction::makeFromBoxedFunction<&run_fallback>());
  }
  m.impl("record_stream", &record_stream);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&run_convolution>());
  m.impl(
      "convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&run_convolution_backward>());
}

// A copy reads the marks of conjugated and negated views itself. PyTorch's fallback would copy them first, for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_fallback>());
}

} // namespace

} // namespace sim
