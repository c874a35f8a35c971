#include "operator/broker/run_shape.h"

namespace fusion::op {

RunShape ShapeOf(const v1alpha1::FusionJobSpec& spec, int stages) {
  RunShape shape;
  shape.stages = stages;
  shape.evaluate = spec.task() == v1alpha1::FusionJobSpec::Evaluate;
  shape.samples_per_step = spec.training().batch().global();
  if (spec.data().kind() == v1alpha1::Data::text) shape.tokens_per_sample = spec.model().config().context();
  if (shape.evaluate) {
    shape.validates = true;
    return shape;
  }
  shape.steps = spec.training().steps();
  shape.validates = spec.training().has_validation();
  shape.validate_every = spec.training().validation().every_steps();
  shape.checkpoint_every = spec.checkpoint().every_steps();
  return shape;
}

}  // namespace fusion::op
