//! Causal attention over a cache, with block selection by an indexer.

use std::ops::Range;

use thalweg_backend::{AttentionCache, AttentionInput, AttentionShape, HeadLayout, Result};

use crate::check::{self, holds, require, volume, word};
use crate::ops::norm;
use crate::pipeline::{Key, Op};
use crate::recorder::Arg::{Device, Host};
use crate::{WgpuBuffer, WgpuRecorder};

/// Largest head: the kernel keeps a query in its workgroup's memory.
const MAX_HEAD_DIM: usize = 1024;

pub(crate) fn pool_keys(
    rec: &mut WgpuRecorder,
    shape: AttentionShape,
    blocks: Range<usize>,
    raw: &WgpuBuffer,
    gamma: &WgpuBuffer,
    pooled: &WgpuBuffer,
) -> Result<()> {
    let AttentionShape {
        block_tokens,
        index_dim,
        eps,
        rope,
        ..
    } = shape;
    let op = "pool_keys";
    let rule = "at least 1";
    require(block_tokens > 0, op, "block_tokens", block_tokens, rule)?;
    check::rope(op, rope, index_dim)?;
    if blocks.is_empty() {
        return Ok(());
    }
    holds(op, "raw", raw, [blocks.end, block_tokens, index_dim])?;
    holds(op, "gamma", gamma, [index_dim])?;
    holds(op, "pooled", pooled, [blocks.end, index_dim])?;
    if index_dim == 0 {
        return Ok(());
    }
    let n = blocks.len();
    let mean = rec.scratch(0, volume([n, index_dim]))?;
    let params = [blocks.start, n, block_tokens, index_dim].map(word);
    let args = [(1, Device(raw.raw())), (2, Device(&mean))];
    rec.each(
        Key::new(Op::PoolMean),
        &params,
        &args,
        volume([n, index_dim]),
    )?;
    let heads = HeadLayout {
        row_len: index_dim,
        offset: 0,
        stride: index_dim,
        n_head: 1,
        head_dim: index_dim,
        eps,
    };
    let first = blocks.start;
    let angles = norm::angles(rope, blocks.map(|block| block * block_tokens));
    norm::rotate(rec, heads, n, &mean, gamma, &angles, pooled, first)
}

pub(crate) fn attention(
    rec: &mut WgpuRecorder,
    shape: AttentionShape,
    input: &AttentionInput<'_, WgpuBuffer>,
    cache: &AttentionCache<'_, WgpuBuffer>,
    out: &WgpuBuffer,
) -> Result<()> {
    let AttentionShape {
        n_tokens,
        first_position,
        n_head,
        n_head_kv,
        head_dim,
        block_tokens,
        budget_tokens,
        ..
    } = shape;
    let op = "attention";
    check_shape(op, &shape, input)?;
    let n_cached = first_position.saturating_add(n_tokens);
    let gates = input.gate_layout;
    holds(op, "q", input.q, [n_tokens, n_head, head_dim])?;
    holds(op, "gate", input.gate, [n_tokens, gates.row_len])?;
    holds(op, "k", cache.k, [n_cached, n_head_kv, head_dim])?;
    holds(op, "v", cache.v, [n_cached, n_head_kv, head_dim])?;
    let n_blocks = n_cached.checked_div(block_tokens).unwrap_or(0);
    if let Some(i) = &input.indexer {
        let dims = [n_tokens, shape.n_head_index, shape.index_dim];
        holds(op, "indexer q", i.q, dims)?;
        holds(op, "pooled", i.pooled, [n_blocks, shape.index_dim])?;
    }
    holds(op, "out", out, [n_tokens, n_head, head_dim])?;
    if volume([n_tokens, n_head, head_dim]) == 0 {
        return Ok(());
    }

    let n_selected = budget_tokens.checked_div(block_tokens).unwrap_or(0);
    let mut chosen = None;
    if let Some(indexer) = input.indexer.as_ref().filter(|_| n_blocks > n_selected) {
        let scores = rec.scratch(0, volume([n_tokens, n_blocks]))?;
        let params = [
            n_tokens,
            first_position,
            block_tokens,
            shape.n_head_index,
            shape.index_dim,
            n_blocks,
        ];
        let args = [
            (1, Device(indexer.q.raw())),
            (2, Device(indexer.pooled.raw())),
            (3, Device(&scores)),
        ];
        let n = volume([n_tokens, n_blocks]);
        rec.each(Key::new(Op::IndexScores), &params.map(word), &args, n)?;
        let list = rec.scratch(1, volume([n_tokens, n_selected]))?;
        let params = [n_tokens, first_position, block_tokens, n_selected, n_blocks];
        let args = [(1, Device(&scores)), (2, Device(&list))];
        let key = Key::new(Op::SelectBlocks);
        rec.dispatch(key, &params.map(word), &args, n_tokens)?;
        chosen = Some(list);
    }
    let params = [
        n_tokens,
        first_position,
        n_head,
        n_head_kv,
        // Without a list the kernel is dense.
        chosen.as_ref().map_or(0, |_| block_tokens),
        n_selected,
        gates.row_len,
        gates.offset,
        gates.stride,
    ];
    let args = [
        (1, Device(input.q.raw())),
        (2, Device(input.gate.raw())),
        (3, Device(cache.k.raw())),
        (4, Device(cache.v.raw())),
        (5, chosen.as_ref().map_or(Host(&[]), Device)),
        (6, Device(out.raw())),
    ];
    let key = Key::new(Op::Attention).with(word(head_dim));
    rec.dispatch(key, &params.map(word), &args, volume([n_tokens, n_head]))
}

/// Fails for sizes that no operands could satisfy.
fn check_shape(
    op: &'static str,
    shape: &AttentionShape,
    input: &AttentionInput<'_, WgpuBuffer>,
) -> Result<()> {
    let AttentionShape {
        n_head,
        n_head_kv,
        head_dim,
        ..
    } = *shape;
    let grouped = n_head_kv > 0 && n_head.is_multiple_of(n_head_kv);
    require(grouped, op, "n_head", n_head, "a multiple of n_head_kv")?;
    let rule = "at most 1024 on this backend";
    require(head_dim <= MAX_HEAD_DIM, op, "head_dim", head_dim, rule)?;
    let gates = input.gate_layout;
    check::layout(op, gates)?;
    let rule = "one per query head";
    require(gates.n_head == n_head, op, "gate heads", gates.n_head, rule)?;
    let rule = "the head's dimensions";
    let dims = gates.head_dim;
    require(dims == head_dim, op, "gate dimensions", dims, rule)?;
    if input.indexer.is_some() {
        let (block, budget) = (shape.block_tokens, shape.budget_tokens);
        require(block > 0, op, "block_tokens", block, "at least 1")?;
        let whole = budget > 0 && budget.is_multiple_of(block);
        let rule = "a positive multiple of block_tokens";
        require(whole, op, "budget_tokens", budget, rule)?;
        let n = volume([shape.n_head_index, shape.index_dim]);
        require(n > 0, op, "indexer width", n, "at least 1")?;
    }
    Ok(())
}
