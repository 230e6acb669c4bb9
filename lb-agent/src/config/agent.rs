//! Reads `AgentConfiguration` v1alpha1: the settings that kube-proxy does not have.

use super::kube_proxy::some;
use super::section::{FileValue, Section};
use super::{
    Acceleration, Bypass, Config, Echo, Masquerade, Pattern, Setting, SettingOrigin, SocketLb,
};
use crate::maps::MapShape;

pub(super) const MASQUERADE: [(&str, Masquerade); 2] =
    [("edge", Masquerade::Edge), ("kube-proxy", Masquerade::KubeProxy)];
pub(super) const SOCKET_LB: [(&str, SocketLb); 3] =
    [("host", SocketLb::Host), ("all", SocketLb::All), ("off", SocketLb::Off)];
pub(super) const ACCELERATION: [(&str, Acceleration); 3] =
    [("auto", Acceleration::Auto), ("native", Acceleration::Native), ("off", Acceleration::Off)];
pub(super) const BYPASS: [(&str, Bypass); 2] = [("on", Bypass::On), ("off", Bypass::Off)];
pub(super) const ECHO: [(&str, Echo); 2] = [("answer", Echo::Answer), ("reject", Echo::Reject)];

/// Reads the document into the configuration.
pub(super) fn read(config: &mut Config, section: &mut Section) {
    config.masquerade.file(section.word("masquerade", &MASQUERADE));
    config.socket_lb.file(section.word("socketLB", &SOCKET_LB));
    config.acceleration.file(section.word("acceleration", &ACCELERATION));
    config.bypass.file(bypass(section, &mut config.warnings));
    config.echo.file(section.word("echo", &ECHO));
    let localhost = section.flag("localhostNodePorts");
    config.is_localhost_of_kube_proxy &= localhost.is_none();
    config.localhost_node_ports.file(localhost);
    config.external_devices.file(patterns(section, "externalDevices"));
    config.pod_devices.file(patterns(section, "podDevices"));
    config.bpf_dir.file(section.path("bpfDir"));
    config.cgroup.file(section.path("cgroup").map(some));
    config.service_proxy_name.file(section.text("serviceProxyName").map(some));
    for (key, found) in section.numbers("mapSizes") {
        // Map names are upper case; the file may have them in either case.
        let name = key.to_uppercase();
        match MapShape::ensure_sizable(&name, found.value) {
            Ok(()) => {
                let setting =
                    Setting { value: found.value, origin: SettingOrigin::File(found.location) };
                config.map_sizes.insert(name, setting);
            }
            Err(why) => section.wrong(found.location, &format!("mapSizes.{key}"), why),
        }
    }
    // SCTP is not under `timeouts`, which has the names of kube-proxy's section `conntrack`.
    config.timeouts.sctp.file(section.duration("sctpTimeout"));
    section.sub("timeouts", |section| {
        let timeouts = &mut config.timeouts;
        timeouts.tcp_established.file(section.duration("tcpEstablished"));
        timeouts.tcp_close_wait.file(section.duration("tcpCloseWait"));
        timeouts.udp.file(section.duration("udp"));
        timeouts.udp_stream.file(section.duration("udpStream"));
    });
}

/// Reads `bypass`, or `shortCuts`, its former name.
fn bypass(section: &mut Section, warnings: &mut Vec<String>) -> Option<FileValue<Bypass>> {
    const FORMER: &str = "shortCuts";
    let (now, former) = (section.word("bypass", &BYPASS), section.word(FORMER, &BYPASS));
    if let (Some(_), Some(former)) = (&now, &former) {
        section.wrong(
            former.location,
            FORMER,
            "is the former name of bypass, which is set as well".into(),
        );
    } else if former.is_some() {
        warnings.push(format!("{FORMER}: this is the former name of bypass; rename it"));
    }
    now.or(former)
}

fn patterns(section: &mut Section, key: &str) -> Option<FileValue<Vec<Pattern>>> {
    let list = section.texts(key)?;
    let location = list.first()?.location;
    let mut patterns = Vec::new();
    for (at, found) in list.into_iter().enumerate() {
        match found.value.parse::<Pattern>() {
            Ok(pattern) => patterns.push(pattern),
            // Each entry is reported with its own location, so that one attempt shows all problems.
            Err(why) => section.wrong(found.location, &format!("{key}[{at}]"), why.to_owned()),
        }
    }
    Some(FileValue { value: patterns, location })
}
