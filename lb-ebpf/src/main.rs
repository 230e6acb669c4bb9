//! The eBPF programs of lb-agent: entry points of a few lines each, named after their hook, and the
//! stages of the path behind them (`stages`).
//!
//! All decisions are in `lb-common`. This crate has only the maps (`maps`), the adapters (`skb` and `frame`, both over
//! `linear`, `fib` and `socket_lookup`; `sock`, `kernel`) and the translation of verdicts (`report`). Compiled for the
//! host it is an empty program, so that the whole workspace can be linted at once.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    target_arch = "bpf",
    expect(clippy::cast_possible_wrap, reason = "offsets and lengths are below 64 KiB"),
    expect(clippy::if_then_some_else_none, reason = "VERIFIER: a branch that it can follow"),
    expect(clippy::needless_pass_by_value, reason = "aya hands contexts over by value"),
    expect(clippy::semicolon_inside_block, reason = "an unsafe operation stays on one line")
)]

#[cfg(target_arch = "bpf")]
mod fib;
#[cfg(target_arch = "bpf")]
mod flows;
#[cfg(target_arch = "bpf")]
mod frame;
#[cfg(target_arch = "bpf")]
mod headers;
#[cfg(target_arch = "bpf")]
mod kernel;
#[cfg(target_arch = "bpf")]
mod linear;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod object;
#[cfg(target_arch = "bpf")]
mod parts;
#[cfg(target_arch = "bpf")]
mod programs;
#[cfg(target_arch = "bpf")]
mod report;
#[cfg(target_arch = "bpf")]
mod skb;
#[cfg(target_arch = "bpf")]
mod sock;
#[cfg(target_arch = "bpf")]
mod socket_lookup;
#[cfg(target_arch = "bpf")]
mod stages;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
