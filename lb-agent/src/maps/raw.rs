//! Types of `lb-common` as aya wants them: `lb-common` forbids `unsafe`, so the promise is given here, once.

use aya::Pod;
use lb_common::addr::Ip;
use lb_common::config::{Device, SettingsPair};
use lb_common::flow::{
    Affinity, Client, Flow, Flow4, FlowKey, FlowKey4, Fragment, Held, Peer, Ports,
};
use lb_common::layout;
use lb_common::service::{Backend, Frontend, Service, Source};

/// A type of maps: `repr(C)`, and proven to be without padding and without bytes that are no value.
pub(crate) trait Plain: layout::Plain + Default + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {
        $(impl Plain for $type {})*

        /// The fingerprints that tell these types from those of another layout.
        #[cfg(test)]
        pub(crate) const FINGERPRINTS: &[u64] = &[$(<$type as layout::Plain>::FINGERPRINT),*];
    };
}

plain! {
    Frontend Service Backend Source SettingsPair Device Ip
    FlowKey4 Flow4 FlowKey Flow Client Affinity Peer Fragment Ports Held
}

/// A key or value of a map.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Raw<T: Plain>(pub(crate) T);

// SAFETY: `repr(transparent)` over a `Plain` type, and only the types listed above are that: no padding that could
// leak, no value that bytes from the kernel could break.
#[expect(unsafe_code, reason = "aya::Pod is foreign and unsafe; the one place that promises it")]
unsafe impl<T: Plain> Pod for Raw<T> {}
