//! Decides which interfaces get the XDP program, from the setting and the kind of interface.

use super::view::{Head, Link, LinkKind};
use crate::config::Acceleration;

/// The known facts about the hardware of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Name of the driver.
    pub driver: String,
    /// Bus address; empty for a virtual interface.
    pub bus: String,
}

/// Drivers that `auto` leaves without XDP, and the reason.
///
/// The names are those of `ETHTOOL_GDRVINFO`, not of modules. The reasons are in the function of the driver that
/// installs a program: `virtnet_xdp_set`; `bnxt_xdp_set`, `qede_xdp_set`, `otx2_xdp_setup` and `nicvf_xdp_setup`, which
/// restart the card for each program, also for one that replaces another; `vmxnet3_xdp_set`, whose packets were too
/// long before Linux 6.15 (kernel commit 4c2227656d90); `xennet_xdp_set` of xen-netfront.
const SKIPPED: [(&[&str], &str); 4] = [
    (&["virtio_net"], "would turn off its receive offloads"),
    (
        &["bnxt_en", "qede", "rvu-nicpf", "rvu-nicvf", "nicvf"],
        "would interrupt all traffic at each upgrade of the agent",
    ),
    (&["vmxnet3"], "passes on packets that are too long while it has XDP"),
    (&["vif"], "drops received frames of several pages while it has XDP"),
];

/// Returns why an external interface gets no XDP program without an attempt at its driver; `None` if it should be
/// tried. `has_calico`: Calico uses XDP on this node.
pub fn refusal(
    setting: Acceleration,
    link: &Link,
    hardware: &Hardware,
    has_calico: bool,
) -> Option<String> {
    let driver = &hardware.driver;
    let fault = fault(driver);
    match setting {
        Acceleration::Off => Some("acceleration is off".to_owned()),
        _ if link.head == Head::Ip => {
            Some("it has no link-layer header, which XDP needs".to_owned())
        }
        // A network card has a bus address; a bond or a dummy interface, which has no kind of its own here, has none.
        Acceleration::Auto if link.kind != LinkKind::Other || hardware.bus.is_empty() => {
            let kind = if driver.is_empty() { "software" } else { driver };
            Some(format!("skipped, XDP is slower than tc on virtual interfaces ({kind})"))
        }
        Acceleration::Auto if fault.is_some() => {
            fault.map(|why| format!("skipped, {driver} {why}"))
        }
        // The kernel refuses to remove a program of a link. Felix tries it again before each update of its rules, which
        // delays the network of new pods (projectcalico/calico#5250).
        Acceleration::Auto if has_calico => Some(
            "skipped, Calico tries to remove XDP programs of others again and again: set its xdpEnabled to false, \
             and acceleration: native here"
                .to_owned(),
        ),
        Acceleration::Auto | Acceleration::Native => None,
    }
}

/// Why `auto` leaves cards of a driver without XDP.
fn fault(driver: &str) -> Option<&'static str> {
    let found = SKIPPED.iter().find(|(drivers, _)| drivers.contains(&driver));
    found.map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(setting: Acceleration, kind: LinkKind, driver: &str, bus: &str) -> bool {
        let hardware = Hardware { driver: driver.to_owned(), bus: bus.to_owned() };
        refusal(setting, &Link { kind, ..Link::default() }, &hardware, false).is_some()
    }

    #[test]
    fn auto_means_hardware_and_native_means_everywhere() {
        use Acceleration::{Auto, Native, Off};
        let (veth, other) = (LinkKind::Veth, LinkKind::Other);
        for (setting, kind, driver, bus, expected) in [
            (Auto, other, "ice", "0000:00:05.0", false),
            (Auto, other, "virtio_net", "virtio1", true),
            (Auto, other, "bnxt_en", "0000:00:05.0", true),
            (Auto, other, "rvu-nicpf", "0002:02:00.0", true),
            (Native, other, "bnxt_en", "0000:00:05.0", false),
            (Auto, other, "bonding", "", true),
            (Auto, veth, "veth", "", true),
            (Native, veth, "veth", "", false),
            (Off, other, "ice", "0000:00:05.0", true),
        ] {
            assert_eq!(refused(setting, kind, driver, bus), expected, "{setting:?} {driver}");
        }
        let tunnel = Link { head: Head::Ip, kind: LinkKind::Tunnel, ..Link::default() };
        assert!(refusal(Native, &tunnel, &Hardware::default(), false).is_some());
        let card = Hardware { driver: "ice".to_owned(), bus: "0000:00:05.0".to_owned() };
        let beside_calico = |setting| refusal(setting, &Link::default(), &card, true);
        assert!(beside_calico(Auto).is_some_and(|why| why.contains("xdpEnabled")));
        assert_eq!(beside_calico(Native), None);
    }
}
