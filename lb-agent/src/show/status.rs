//! `status`: one screen that shows whether the load balancer works, and how it is configured.

use std::net::IpAddr;
use std::path::Path;

use lb_common::config::{Settings, address};
use lb_common::event::{Hook, Verdict, verdict_counter};
use lb_common::service::Flags;

use self::line::line;
use super::{Error, attachments, list};
use crate::datapath::{LAYOUT, SOCKET_HOOKS, attached_hooks, is_here, open};
use crate::maps::Maps;
use crate::state_file::StateFile;
use crate::takeover::{KubeProxyRemains, MapFrontends};
use crate::words;

mod devices;
pub(super) mod line;
mod process;

/// Returns the screen as text, and whether everything is as it should be.
pub fn status(bpf_dir: &Path, is_verbose: bool) -> Result<(String, bool), Error> {
    let state_file = StateFile::read(bpf_dir);
    let maps = match open(bpf_dir) {
        Ok(maps) => maps,
        Err(error) => return process::alone(bpf_dir, &state_file, error).map(|text| (text, false)),
    };
    let links = bpf_dir.join(LAYOUT).join("links");
    let mut text = String::new();
    process::lines(&mut text, bpf_dir, process::running(bpf_dir, &state_file), &state_file);
    let hooks = attached_hooks(&links);
    line(&mut text, "Pins", &bpf_dir.join(LAYOUT).display().to_string());
    if !is_here(&maps) {
        let note = "another one than this command's, whose names of interfaces are shown";
        line(&mut text, "Namespace", note);
    }
    line(&mut text, "Socket hooks", &format!("{hooks} of {} attached", SOCKET_HOOKS.len()));
    let are_attached = devices::lines(&mut text, &maps, &links)?;
    devices::acceleration(&mut text, &state_file, &maps, &links)?;
    if is_verbose {
        attachments::attached(&mut text, &maps, &links)?;
        attachments::machine(&mut text);
    }
    settings(&mut text, &maps)?;
    takeover(&mut text, &maps)?;
    services(&mut text, &maps)?;
    packets(&mut text, &maps)?;
    fill(&mut text, &maps)?;
    findings(&mut text, &state_file);
    // Conflicts and ambiguous interfaces are shown, but they do not make the command fail: they need a decision of the
    // operator.
    let is_well = state_file.refused.is_empty()
        && state_file.unwritten.is_empty()
        && state_file.stale.is_empty()
        && state_file.problems.is_empty()
        && are_attached
        && hooks == SOCKET_HOOKS.len();
    Ok((text, is_well))
}

fn settings(text: &mut String, maps: &Maps) -> Result<(), Error> {
    let settings = maps.settings()?;
    line(text, "Mode", &mode(&settings));
    let mut accepting: Vec<String> = maps
        .addresses()?
        .into_iter()
        .filter(|(_, bits)| bits & address::NODE_PORTS != 0)
        .map(|(ip, _)| IpAddr::from(ip).to_string())
        .collect();
    accepting.sort();
    if settings.has(Settings::LOOPBACK_NODE_PORTS) {
        accepting.extend(["127.0.0.0/8".to_owned(), "::1".to_owned()]);
    }
    line(text, "NodePorts on", &accepting.join(" "));
    let (low, high) = (settings.node.source_port_low.get(), settings.node.source_port_high.get());
    line(text, "Source ports", &format!("{low}-{high}"));
    let sockets = match settings.node.socket_mode {
        Settings::SOCKETS_OFF => "off",
        Settings::SOCKETS_HOST => "host",
        _ => "all network namespaces",
    };
    line(text, "Socket LB", sockets);
    Ok(())
}

/// Adds what is left of kube-proxy during a take-over, and whether the node is draining.
fn takeover(text: &mut String, maps: &Maps) -> Result<(), Error> {
    let settings = maps.settings()?;
    if settings.has(Settings::DRAIN) {
        line(text, "Draining", "known flows are served, new ones are not");
    }
    if settings.has(Settings::TAKE_OVER) {
        let found =
            MapFrontends::of(maps).and_then(|frontends| KubeProxyRemains::look(Some(&frontends)));
        let value = found.map_or_else(|error| crate::chain(&error), |found| found.to_string());
        line(text, "Take-over", &value);
    }
    Ok(())
}

/// Returns the clients whose source is translated, and how local pods are detected (contract 3.3, 3.4).
fn mode(settings: &Settings) -> String {
    let masquerade = if !settings.has(Settings::MASQUERADE_KUBE_PROXY) {
        "edge"
    } else if settings.has(Settings::MASQUERADE_ALL) {
        "kube-proxy, masqueradeAll"
    } else {
        "kube-proxy"
    };
    let pods = if settings.has(Settings::NO_DETECTOR) {
        "not detected".to_owned()
    } else if settings.has(Settings::LOCAL_BY_PREFIX) {
        let networks = settings.node.local.iter().filter_map(words::network);
        let networks: Vec<String> = networks.map(|network| network.to_string()).collect();
        format!("detected by prefix: {}", networks.join(" "))
    } else if settings.has(Settings::LOCAL_BY_DEVICE) {
        "detected by the interfaces of detectLocal".to_owned()
    } else {
        "detected by interface".to_owned()
    };
    format!("masquerade {masquerade}; local pods {pods}")
}

fn services(text: &mut String, maps: &Maps) -> Result<(), Error> {
    let services = maps.services()?;
    let count =
        |is: fn(Flags) -> bool| services.iter().filter(|(_, service)| is(service.flags)).count();
    let draining = count(|flags| flags.has(Flags::DRAINING));
    let frontends = count(|flags| !flags.has(Flags::ADDRESS) && !flags.has(Flags::DRAINING));
    let served = list::backends(maps, &services)?;
    let rows = maps.backends()?.iter().filter(|row| row.service != 0).count();
    // Removed backends keep their rows for a while.
    let left = match rows.saturating_sub(served) {
        0 => String::new(),
        left => format!(" ({left} removed)"),
    };
    let value =
        format!("{frontends} frontends, {served} backends{left}, {draining} frontends draining");
    line(text, "Services", &value);
    Ok(())
}

fn packets(text: &mut String, maps: &Maps) -> Result<(), Error> {
    let counters = maps.counters()?;
    let sum = |verdict: Verdict| -> u64 {
        let hooks = Hook::ALL.iter().map(|hook| verdict_counter(*hook, verdict));
        hooks.filter_map(|index| counters.get(index as usize)).sum()
    };
    for class in ["translated", "returned", "redirected", "drop"] {
        let of_class = Verdict::all().filter(|verdict| verdict.class() == class);
        let counted: Vec<String> = of_class
            .map(|verdict| (verdict.name(), sum(verdict)))
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let value = if counted.is_empty() { "-".to_owned() } else { counted.join(", ") };
        let heading = if class == "drop" { "dropped" } else { class };
        line(text, &format!("Packets {heading}"), &value);
    }
    Ok(())
}

fn fill(text: &mut String, maps: &Maps) -> Result<(), Error> {
    for (map, used, capacity) in maps.fill()? {
        let percent = used as u64 * 100 / u64::from(capacity.max(1));
        line(text, "Map", &format!("{map:<15} {used:>8} of {capacity:>8}  {percent:>3} %"));
    }
    Ok(())
}

fn findings(text: &mut String, state_file: &StateFile) {
    for (port, map) in &state_file.refused {
        line(text, "Refused", &format!("{port}: {}", words::full(map)));
    }
    for (port, why) in &state_file.unwritten {
        line(text, "Not written", &format!("{port}: {why}; retrying every second"));
    }
    for device in &state_file.ambiguous {
        let remedy = "name all external interfaces with --external-device, or all pod interfaces with \
                      --pod-device";
        line(text, "Ambiguous", &format!("{device} is served as a pod interface: {remedy}"));
    }
    for problem in &state_file.problems {
        line(text, "Problem", problem);
    }
    for (frontend, ports) in &state_file.conflicts {
        if let Some((winner, losers)) = ports.split_first() {
            let losers = losers.join(", ");
            line(
                text,
                "Conflict",
                &format!("{frontend}: served for {winner}, also claimed by {losers}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::addr::Ip;
    use lb_common::config::{NodeSettings, Prefix};

    use super::*;

    #[test]
    fn mode_names_every_method_of_local_pod_detection() {
        let of = |flags| {
            mode(&Settings {
                node: NodeSettings { flags, ..NodeSettings::default() },
                ..Settings::default()
            })
        };
        assert_eq!(of(0), "masquerade edge; local pods detected by interface");
        let all = Settings::MASQUERADE_KUBE_PROXY | Settings::MASQUERADE_ALL;
        assert_eq!(
            of(all | Settings::NO_DETECTOR),
            "masquerade kube-proxy, masqueradeAll; local pods not detected"
        );
        assert_eq!(
            of(Settings::MASQUERADE_KUBE_PROXY | Settings::LOCAL_BY_DEVICE),
            "masquerade kube-proxy; local pods detected by the interfaces of detectLocal"
        );
        let mask = Ip::v6([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let six = Prefix { ip: Ip::v6([0xfd; 16]), mask };
        let node = NodeSettings {
            flags: Settings::LOCAL_BY_PREFIX,
            local: [Prefix::default(), six],
            ..NodeSettings::default()
        };
        let settings = Settings { node, ..Settings::default() };
        assert_eq!(
            mode(&settings),
            "masquerade edge; local pods detected by prefix: \
             fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd/48"
        );
    }
}
