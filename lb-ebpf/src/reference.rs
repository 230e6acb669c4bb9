//! Programs to compare ours with: empty, parse only, parse and one lookup, and a minimal balancer.
//!
//! The balancer translates destinations with a flow table (`cargo xtask bench packet`); `minimal` of `bench traffic`
//! translates one frontend alone. All are written for this purpose only: headers without options, TCP and UDP, no
//! state, no policies, no counters, keys of the family's own size. They are never shipped; only those of `minimal` are
//! ever attached, to interfaces of the bench.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(
    target_arch = "bpf",
    expect(clippy::needless_borrows_for_generic_args, reason = "keys go by reference, as in ours"),
    expect(clippy::needless_pass_by_value, reason = "aya hands contexts over by value"),
    expect(clippy::missing_const_for_fn, reason = "entry points and a panic handler"),
    expect(clippy::semicolon_inside_block, reason = "an unsafe operation stays on one line")
)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod object;
#[cfg(target_arch = "bpf")]
mod reference_minimal;
#[cfg(target_arch = "bpf")]
mod reference_packet;

#[cfg(target_arch = "bpf")]
mod programs {
    use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action};
    use aya_ebpf::btf_maps::HashMap;
    use aya_ebpf::macros::{btf_map, classifier, xdp};
    use aya_ebpf::programs::{TcContext, XdpContext};

    use crate::reference_packet::{
        Key, Packet, TARGET, Target, V4, V6, ether_type, parse, rewrite,
    };

    /// Entries of each map, unless the bench configures another number.
    const ROOM: usize = 262_144;
    type Flows<const W: usize> = HashMap<Key<W>, Target<W>, ROOM>;
    type Frontends<const W: usize> = HashMap<Target<W>, Target<W>, 65_536>;

    #[btf_map]
    static FLOWS4: Flows<V4> = HashMap::new();
    #[btf_map]
    static FLOWS6: Flows<V6> = HashMap::new();
    #[btf_map]
    static FRONTENDS4: Frontends<V4> = HashMap::new();
    #[btf_map]
    static FRONTENDS6: Frontends<V6> = HashMap::new();

    /// A source port that no packet of the bench has: comparing with it keeps the compiler from removing the parser.
    const NOBODY: u32 = 0;

    #[inline(always)]
    fn parse_only<P: Packet>(packet: &P) -> bool {
        match ether_type(packet) {
            Some([0x08, 0x00]) => parse::<P, V4>(packet).is_some_and(|key| key.sum() != NOBODY),
            Some([0x86, 0xdd]) => parse::<P, V6>(packet).is_some_and(|key| key.sum() != NOBODY),
            _ => false,
        }
    }

    #[inline(always)]
    fn is_frontend<P: Packet, const W: usize>(packet: &P, frontends: &Frontends<W>) -> bool {
        parse::<P, W>(packet).is_some_and(|key| frontends.get_ptr(&key.asked()).is_some())
    }

    #[inline(always)]
    fn look_up<P: Packet>(packet: &P) -> bool {
        match ether_type(packet) {
            Some([0x08, 0x00]) => is_frontend(packet, &FRONTENDS4),
            Some([0x86, 0xdd]) => is_frontend(packet, &FRONTENDS6),
            _ => false,
        }
    }

    /// A known flow costs one lookup; for a new one the frontend is looked up and both directions are added.
    #[inline(always)]
    fn balance<P: Packet, const W: usize>(
        packet: &P,
        flows: &Flows<W>,
        frontends: &Frontends<W>,
    ) -> Option<()> {
        let key = parse::<P, W>(packet)?;
        // SAFETY: nothing removes elements while the bench runs.
        if let Some(target) = unsafe { flows.get(&key) } {
            let target = *target;
            return rewrite::<P, W, TARGET>(packet, &key, &target);
        }
        // SAFETY: as above.
        let backend = *unsafe { frontends.get(&key.asked()) }?;
        flows.insert(&key, &backend, 0).ok()?;
        flows.insert(&key.answer(&backend), &key.asked(), 0).ok()?;
        rewrite::<P, W, TARGET>(packet, &key, &backend)
    }

    #[inline(always)]
    fn translate<P: Packet>(packet: &P) -> Option<()> {
        match ether_type(packet)? {
            [0x08, 0x00] => balance(packet, &FLOWS4, &FRONTENDS4),
            [0x86, 0xdd] => balance(packet, &FLOWS6, &FRONTENDS6),
            _ => None,
        }
    }

    const fn tc(said: bool, yes: i32, no: i32) -> i32 {
        if said { yes } else { no }
    }

    #[classifier]
    fn empty(_context: TcContext) -> i32 {
        TC_ACT_UNSPEC
    }

    #[classifier]
    fn parse_tc(context: TcContext) -> i32 {
        tc(parse_only(&context), TC_ACT_UNSPEC, TC_ACT_SHOT)
    }

    #[classifier]
    fn look_up_tc(context: TcContext) -> i32 {
        tc(look_up(&context), TC_ACT_SHOT, TC_ACT_UNSPEC)
    }

    #[classifier]
    fn translate_tc(context: TcContext) -> i32 {
        tc(translate(&context).is_some(), TC_ACT_UNSPEC, TC_ACT_SHOT)
    }

    #[xdp]
    fn empty_xdp(_context: XdpContext) -> u32 {
        xdp_action::XDP_PASS
    }

    #[xdp]
    fn parse_xdp(context: XdpContext) -> u32 {
        if parse_only(&context) { xdp_action::XDP_PASS } else { xdp_action::XDP_DROP }
    }

    #[xdp]
    fn look_up_xdp(context: XdpContext) -> u32 {
        if look_up(&context) { xdp_action::XDP_DROP } else { xdp_action::XDP_PASS }
    }

    #[xdp]
    fn translate_xdp(context: XdpContext) -> u32 {
        if translate(&context).is_some() { xdp_action::XDP_PASS } else { xdp_action::XDP_DROP }
    }
}
