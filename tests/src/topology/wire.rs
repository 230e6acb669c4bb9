//! The pair of interfaces between a node and a pod: a veth, or a netkit in mode l2 or l3.
//!
//! Netkits are created over netlink, because ip-link(8) of many distributions cannot set their mode, which is l3 by
//! default.

use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoNetkit, NetkitMode};
use rtnetlink::{LinkMessageBuilder, LinkNetkit, LinkUnspec};

use crate::netns::Netns;

/// The kind of the interface pair. The pod's side is named `eth0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Veth,
    /// A netkit with Ethernet headers and hardware addresses.
    NetkitL2,
    NetkitL3,
}

impl Wire {
    /// Creates the pair; `device` is the name of the node's side.
    pub(crate) fn connect(self, node: &Netns, device: &str, pod: &Netns) -> Result<()> {
        let mode = match self {
            Self::Veth => {
                let name = pod.name();
                return node
                    .ip(&format!("link add {device} type veth peer name eth0 netns {name}"));
            }
            Self::NetkitL2 => NetkitMode::L2,
            Self::NetkitL3 => NetkitMode::L3,
        };
        node.run_in(|| netkit(device, pod, mode))?
            .with_context(|| format!("netkit {device} of {}", node.name()))
    }
}

/// Creates a netkit in the namespace of the calling thread, with its peer in the namespace of a pod.
fn netkit(device: &str, pod: &Netns, mode: NetkitMode) -> Result<()> {
    let handle = pod.handle();
    let peer = LinkMessageBuilder::<LinkUnspec>::default()
        .name("eth0".to_owned())
        .setns_by_fd(handle.as_raw_fd())
        .build();
    let pair = LinkMessageBuilder::<LinkNetkit>::new_with_info_kind(InfoKind::Netkit)
        .name(device.to_owned())
        .set_info_data(InfoData::Netkit(vec![InfoNetkit::Mode(mode), InfoNetkit::Peer(peer)]))
        .build();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, handle, _messages) = rtnetlink::new_connection()?;
        let connection = tokio::spawn(connection);
        let made = handle.link().add(pair).execute().await;
        connection.abort();
        Ok(made?)
    })
}
