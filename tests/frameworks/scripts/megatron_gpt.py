"""Megatron-core's GPT in its own training loop, with the sizes of its parallelism on the command line."""

import argparse
import os
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--tensor-parallel", type=int, default=1)
parser.add_argument("--pipeline-parallel", type=int, default=1)
parser.add_argument("--experts", type=int, default=None)
parser.add_argument("--expert-parallel", type=int, default=1)
args = parser.parse_args()
moe_utils.te_general_gemm = None  # megatron-core 0.16.1 reads it, and defines it where Transformer Engine is installed
SEQUENCE, VOCABULARY, MICRO_BATCH, MICRO_BATCHES = 32, 128, 2, 4

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=args.tensor_parallel,
    pipeline_model_parallel_size=args.pipeline_parallel,
    expert_model_parallel_size=args.expert_parallel,
)
torch.manual_seed(0)
model_parallel_cuda_manual_seed(0)
config = TransformerConfig(
    num_layers=4,
    hidden_size=64,
    num_attention_heads=4,
    ffn_hidden_size=256,
    num_moe_experts=args.experts,
    moe_token_dispatcher_type="alltoall",
    moe_router_topk=2,
    moe_aux_loss_coeff=1e-2,
    moe_expert_capacity_factor=1.0,
    moe_pad_expert_input_to_capacity=True,
    tensor_model_parallel_size=args.tensor_parallel,
    sequence_parallel=args.tensor_parallel > 1,
    pipeline_model_parallel_size=args.pipeline_parallel,
    expert_model_parallel_size=args.expert_parallel,
    add_bias_linear=args.experts is None,
    bf16=True,
    params_dtype=torch.bfloat16,
    pipeline_dtype=torch.bfloat16,
)


class LayerNorm(torch.nn.LayerNorm):
    """torch's, for sequence parallelism without Transformer Engine or Apex: Megatron sums its gradients over ranks."""

    def __init__(self, config, hidden_size, eps=1e-5, **kwargs):
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


layer = get_gpt_layer_local_spec(num_experts=args.experts)
layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = LayerNorm
gpt = GPTModel(
    config=config,
    transformer_layer_spec=TransformerBlockSubmodules([layer] * get_num_layers_to_build(config), LayerNorm),
    vocab_size=VOCABULARY,
    max_sequence_length=SEQUENCE,
    position_embedding_type="rope",
    pre_process=parallel_state.is_pipeline_first_stage(),
    post_process=parallel_state.is_pipeline_last_stage(),
).cuda()
ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
model = DistributedDataParallel(config=config, ddp_config=ddp_config, module=Float16Module(config, gpt))
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True),
    [model],
)
config.finalize_model_grads_func = finalize_model_grads


def batches():
    while True:
        tokens = torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE + 1), device="cuda")
        mask = torch.ones((SEQUENCE, SEQUENCE), device="cuda").tril().logical_not()[None, None]
        yield tokens[:, :-1], tokens[:, 1:], torch.arange(SEQUENCE, device="cuda").expand(MICRO_BATCH, -1), mask


def loss_of(losses):
    loss = losses.float().mean()
    return loss, {"lm loss": loss.detach()}


def forward_step(data, model):
    tokens, labels, positions, mask = next(data)
    return model(tokens, positions, mask, labels=labels), partial(loss_of)


forward_backward = get_forward_backward_func()
data = batches()
for step in range(2):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    losses = forward_backward(
        forward_step_func=forward_step,
        data_iterator=data,
        model=[model],
        num_microbatches=MICRO_BATCHES,
        seq_length=SEQUENCE,
        micro_batch_size=MICRO_BATCH,
        forward_only=False,
    )
    _, norm, _ = optimizer.step()
    if parallel_state.is_pipeline_last_stage():
        print(f"step {step}: loss {sum(each['lm loss'].item() for each in losses) / len(losses):.3f}, norm {norm:.3f}")
torch.distributed.destroy_process_group()
