// A whole redistribution inside one process: the way to try a plan and to test it.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "copy/crew.h"
#include "tensor/view.h"
#include "tensorbus/plan.h"

namespace tensorbus::copy {

// What each rank has of a tensor: one local tensor, or one for each of its boxes.
using Locals = std::map<Rank, std::vector<TensorView>>;

// By a plan that was made for these tensors; targets do not share memory with sources. Error,
// before anything is written, if types do not fit or a target cannot be written.
void redistribute(const plan::Plan& plan, const Locals& from, const Locals& to);

// The local tensors of both sides are in the order of their meshes' ranks; targets do not share
// memory with sources. Error, before anything is written, if types or shapes do not fit the
// layouts.
void redistribute(const Layout& source, std::span<const TensorView> from, const Layout& target,
                  std::span<const TensorView> to);

// Each tensor to the one of the same shape and type; none shares memory with another. Error as
// above.
void copy_each(std::span<const TensorView> from, std::span<const TensorView> to, Crew& crew);
// Copies one whole tensor to another of the same shape, that does not share memory with the first;
// casts.
void copy_tensor(const TensorView& from, const TensorView& to);

}  // namespace tensorbus::copy
