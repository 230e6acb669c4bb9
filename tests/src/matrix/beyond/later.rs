//! What must be true after the Services were changed.

use anyhow::Result;

use super::Expect::{Lost, Refused, Silence};
use super::first::ASKERS;
use super::more::SECOND_VIPS;
use super::{BOTH, Cases, HERE, THERE};
use crate::matrix::question::{Case, Destination, Source};
use crate::matrix::setup::Setup;

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
        // Contract 14, row 5: kube-proxy leaves it where it was, too.
        let left = if setup.is_kube_proxy() { HERE } else { Refused };
        all.add(source, Destination::ClusterIp, 116, left)?;
        all.add(source, Destination::ClusterIp, 117, HERE)?;
        let policy = if source == Source::Outside { Silence } else { THERE };
        all.add(source, Destination::NodePort, 114, policy)?;
        all.add(source, Destination::ClusterIp, 114, THERE)?;
    }
    Ok(all.cases)
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
