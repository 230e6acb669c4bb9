//! Statements about the Services after they were changed.

use anyhow::Result;

use super::Expect::{Lost, Refused, Silence};
use super::changing::{CHANGING, OTHER};
use super::first::ASKERS;
use super::frontends::SECOND_VIPS;
use super::{BOTH, Cases, HERE, THERE};
use crate::matrix::question::{Case, Destination, Source};
use crate::matrix::setup::Setup;
use crate::topology::address::{self, Segment};

pub(super) fn changed(setup: &Setup) -> Result<Vec<Case>> {
    let mut all = Cases::of(setup);
    for source in ASKERS {
        for number in [111, 112, 113] {
            all.add(source, Destination::ClusterIp, number, Silence)?;
            all.add(source, Destination::NodePort, number, Refused)?;
        }
        all.add(source, Destination::ClusterIp, 100, THERE)?;
        all.add(source, Destination::NodePort, 100, THERE)?;
        all.add(source, Destination::Vip, 115, Lost)?;
        all.add(source, Destination::ClusterIp, 115, BOTH)?;
        all.add(source, Destination::ClusterIp, 132, THERE)?;
        let [(one, second), _] = SECOND_VIPS;
        all.add(source, Destination::Vip, one, BOTH)?;
        all.add(source, Destination::Vip, second, Lost)?;
        // Contract 14, row 5: kube-proxy also keeps serving the old address.
        let left = if setup.is_kube_proxy() { HERE } else { Refused };
        all.add(source, Destination::ClusterIp, 116, left)?;
        all.add(source, Destination::ClusterIp, 117, HERE)?;
        let policy = if source == Source::Outside { Silence } else { THERE };
        all.add(source, Destination::NodePort, 114, policy)?;
        all.add(source, Destination::ClusterIp, 114, THERE)?;
        parts_that_changed(&mut all, source)?;
    }
    Ok(all.cases)
}

/// Cases for Services of which one part changed; the other parts must work as before.
fn parts_that_changed(all: &mut Cases<'_>, source: Source) -> Result<()> {
    let [of_node_port, of_port, of_type, of_ranges, of_addresses] = CHANGING;
    let own = Segment::First.host(address::node(1))?;
    let (port, node_port) = OTHER;
    all.add(source, Destination::NodePort, of_node_port, Refused)?;
    all.to("node-port that is new", source, own, node_port, BOTH);
    all.add(source, Destination::ClusterIp, of_node_port, BOTH)?;

    all.add(source, Destination::ClusterIp, of_port, Refused)?;
    all.to("a port that is new", source, address::cluster_ip(of_port)?, port, BOTH);
    all.add(source, Destination::NodePort, of_port, BOTH)?;

    all.add(source, Destination::NodePort, of_type, Refused)?;
    for destination in [Destination::ClusterIp, Destination::ExternalIp] {
        all.add(source, destination, of_type, BOTH)?;
    }

    let of_client = if source == Source::Outside { BOTH } else { Silence };
    all.add(source, Destination::Vip, of_ranges, of_client)?;
    all.add(source, Destination::NodePort, of_ranges, BOTH)?;

    all.add(source, Destination::ExternalIp, of_addresses, Lost)?;
    all.add(source, Destination::Vip, of_addresses, BOTH)
}

pub(super) fn changed_back(setup: &Setup) -> Result<Vec<Case>> {
    let mut all = Cases::of(setup);
    for source in ASKERS {
        for destination in [Destination::ClusterIp, Destination::NodePort, Destination::Vip] {
            all.add(source, destination, 111, BOTH)?;
            all.add(source, destination, 100, HERE)?;
            all.add(source, destination, 132, BOTH)?;
        }
    }
    Ok(all.cases)
}
