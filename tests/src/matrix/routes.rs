//! The routes of a world: every packet for a Service goes to `node-a`.

use anyhow::Result;

use super::extra_cases::{BOUND, MORE_ADDRESSES, OTHER_TARGET};
use super::question::{CLUSTER, Destination, EXTERNAL, PROXIED, VIPS, addresses};
use crate::rig::{Rig, TARGET};
use crate::topology::Addresses;
use crate::traffic::Protocol;

/// Routes packets for Services to `node-a` on all members but that node. The address of the load balancer with `ipMode:
/// Proxy` belongs to the client.
pub(super) fn lead_to_node_a(rig: &Rig) -> Result<()> {
    let node = rig.node(0)?;
    add_addresses(rig)?;
    let node = node.addresses();
    for member in [rig.client(), rig.node(1)?.host()] {
        for device in ["all", "eth0"] {
            // With kube-proxy, the node sends ICMP redirects, after which packets of these members would bypass it.
            member.netns().sysctl(&format!("net.ipv4.conf.{device}.accept_redirects"), "0")?;
            member.netns().sysctl(&format!("net.ipv6.conf.{device}.accept_redirects"), "0")?;
        }
        for [v4, v6] in [CLUSTER, EXTERNAL, VIPS] {
            member
                .netns()
                .ip(&format!("route add {v4} via {}\nroute add {v6} via {}", node.v4, node.v6))?;
        }
    }
    let client = rig.client();
    let proxied = PROXIED;
    client.netns().ip(&format!(
        "address add {}/32 dev lo\naddress add {}/128 dev lo nodad",
        proxied.v4, proxied.v6
    ))?;
    let via = client.addresses();
    rig.topology().fabric().ip(&format!(
        "route add {}/32 via {}\nroute add {}/128 via {}",
        proxied.v4, via.v4, proxied.v6, via.v6
    ))?;
    // Without these routes, a router would report a withdrawn address as unreachable, but only once a second, so that
    // outcomes would differ.
    for [v4, v6] in [VIPS, EXTERNAL] {
        rig.topology()
            .fabric()
            .ip(&format!("route add blackhole {v4}\nroute add blackhole {v6}"))?;
    }
    let other = rig.pod(1, 0)?;
    for protocol in Protocol::ALL {
        // This pod serves at another port than all others.
        other.peer().stop_serving(protocol, &other.addresses().both(), TARGET)?;
        other.peer().serve(protocol, &other.addresses().both(), OTHER_TARGET)?;
        client.peer().serve(protocol, &proxied.both(), 80)?;
    }
    Ok(())
}

/// Adds addresses to the node that its Node object lacks, and a load balancer address, as some setups do.
fn add_addresses(rig: &Rig) -> Result<()> {
    let node = rig.node(0)?;
    node.netns().ip("link add more type bridge\nlink set more up")?;
    let via = node.addresses();
    for Addresses { v4, v6 } in MORE_ADDRESSES {
        node.netns()
            .ip(&format!("address add {v4}/32 dev more\naddress add {v6}/128 dev more nodad"))?;
        for member in [rig.client(), rig.node(1)?.host()] {
            let (via4, via6) = (via.v4, via.v6);
            member.netns().ip(&format!("route add {v4} via {via4}\nroute add {v6} via {via6}"))?;
        }
    }
    let Addresses { v4, v6 } = addresses(Destination::Vip, BOUND)?;
    node.netns().ip(&format!("address add {v4}/32 dev more\naddress add {v6}/128 dev more nodad"))
}
