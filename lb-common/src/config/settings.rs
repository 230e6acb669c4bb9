//! The one element of `SETTINGS`: node-wide settings in two slots, one of them in use.

use core::ops::RangeInclusive;

use super::{NodeSettings, ServiceRanges};
use crate::addr::Port;
use crate::layout::plain;

/// The ports that Kubernetes gives to `NodePorts` by default (`--service-node-port-range` of kube-apiserver).
pub const USUAL_NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// `node`: from interfaces, Node and configuration (`run/devices`); `services`: from Services (`reconcile/ranges`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub node: NodeSettings,
    pub services: ServiceRanges,
    /// Zeros: the size stays a power of two ([`SettingsPair::SLOT`]).
    pub rest: [u32; 112],
}

plain!(Settings = 2_048 { node, services, rest });
const _: () = assert!(align_of::<Settings>() == 8);

impl Default for Settings {
    fn default() -> Self {
        Self { node: NodeSettings::default(), services: ServiceRanges::default(), rest: [0; 112] }
    }
}

/// Bits of [`NodeSettings::flags`].
impl Settings {
    /// Source translation as kube-proxy does it (contract 3.3).
    pub const MASQUERADE_KUBE_PROXY: u32 = 1;
    /// With [`Settings::MASQUERADE_KUBE_PROXY`]: `masqueradeAll`.
    pub const MASQUERADE_ALL: u32 = 2;
    /// Pods cannot be distinguished from other clients (`detectLocalMode` without a value): contract 3.4, "no
    /// detector".
    pub const NO_DETECTOR: u32 = 4;
    /// ICMP echo requests to a ClusterIP are answered; without the flag they are rejected.
    pub const ANSWER_ECHO: u32 = 8;
    /// `NodePorts` are served on loopback addresses: at connect(2), and by packet at `lo` (ADR 0027).
    pub const LOOPBACK_NODE_PORTS: u32 = 16;
    /// A client is local by [`NodeSettings::local`], not by its interface.
    pub const LOCAL_BY_PREFIX: u32 = 32;
    /// A client is local by [`super::Device::LOCAL_CLIENTS`], not by the role of its interface.
    pub const LOCAL_BY_DEVICE: u32 = 64;
    /// XDP redirects packets to other nodes, by interfaces with [`super::Device::TAKES_FRAMES`].
    pub const REDIRECTS: u32 = 128;
    /// Some interfaces have [`super::Device::BYPASS`].
    pub const BYPASSES: u32 = 256;
    /// On some interface XDP may have translated a packet before tc sees it.
    pub const ACCELERATED: u32 = 512;
    /// Netfilter still translates connections to frontends: a packet without a flow that may belong to one of them
    /// passes.
    pub const TAKE_OVER: u32 = 1024;
    /// No new flow is created: packets without a flow pass, and the socket hooks serve no socket.
    pub const DRAIN: u32 = 2048;
    /// Flows towards pods may be masqueraded: kube-proxy's source translation is in effect, or was in an earlier run.
    pub const MASQUERADED_PODS: u32 = 4096;
    /// Either flag of those that masquerade packets to pods: earlier versions wrote only the first.
    pub const ANY_MASQUERADE_AT_PODS: u32 = Self::MASQUERADE_KUBE_PROXY | Self::MASQUERADED_PODS;

    /// Whether a flag is set.
    #[inline(always)]
    pub const fn has(&self, flag: u32) -> bool {
        self.node.flags & flag != 0
    }
}

/// Values of [`NodeSettings::socket_mode`].
impl Settings {
    /// The socket hooks serve no socket.
    pub const SOCKETS_OFF: u32 = 0;
    /// Sockets of the network namespace named by [`NodeSettings::netns_cookie`].
    pub const SOCKETS_HOST: u32 = 1;
    /// Sockets of every namespace below the cgroup.
    pub const SOCKETS_ALL: u32 = 2;
}

impl Settings {
    /// Whether pods of a family can be distinguished from other clients (contract 3.4): the prefix of pods may be known
    /// for one family only.
    #[inline(always)]
    pub const fn has_detector(&self, v4: bool) -> bool {
        let [local4, local6] = &self.node.local;
        let local = if v4 { local4 } else { local6 };
        !self.has(Self::NO_DETECTOR) && (!self.has(Self::LOCAL_BY_PREFIX) || local.is_set())
    }

    /// Whether a port is, or may become, a `NodePort`: one in use, or of the range that Kubernetes gives by default.
    #[inline(always)]
    pub const fn may_become_node_port(&self, port: Port) -> bool {
        let number = port.get();
        number >= *USUAL_NODE_PORTS.start() && number <= *USUAL_NODE_PORTS.end()
            || self.services.may_be_node_port(port)
    }
}

/// The element of `SETTINGS`: the settings in use, and the slot for the next ones.
///
/// The agent replaces them by writing the slot that is not in use and then `start`, so no packet sees half of a change.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsPair {
    /// Offset of the slot in use in `slots`: 0 or [`SettingsPair::SLOT`].
    ///
    /// VERIFIER: in bytes, because the compiler multiplies an index by branches, each a path of the whole program.
    pub start: u32,
    /// Zero.
    pub pad: u32,
    pub slots: [Settings; 2],
}

plain!(SettingsPair = 4_104 { start, pad, slots });

impl SettingsPair {
    /// Bytes of a slot: a power of two, so that [`SettingsPair::start`] has one bit.
    pub const SLOT: u32 = size_of::<Settings>() as u32;

    /// The slot in use.
    pub const fn in_use(&self) -> &Settings {
        let [first, second] = &self.slots;
        if self.start & Self::SLOT == 0 { first } else { second }
    }

    /// The elements to write, one after the other, to put `settings` in use.
    pub const fn replaced(&self, settings: Settings) -> [Self; 2] {
        let mut written = *self;
        let [first, second] = &mut written.slots;
        *(if self.start & Self::SLOT == 0 { second } else { first }) = settings;
        let start = (self.start & Self::SLOT) ^ Self::SLOT;
        [written, Self { start, ..written }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_use_change_only_by_the_second_write() {
        let mut pair = SettingsPair::default();
        for flags in 1..5 {
            let before = *pair.in_use();
            let node = NodeSettings { flags, ..before.node };
            let [written, switched] = pair.replaced(Settings { node, ..before });
            assert_eq!(*written.in_use(), before);
            assert_eq!(*switched.in_use(), Settings { node, ..before });
            assert_eq!(written.slots, switched.slots);
            pair = switched;
        }
    }
}
