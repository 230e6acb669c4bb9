//! `status`: one screen that answers "is it on, and how".

use std::fmt::Write as _;
use std::path::Path;

use lb_common::addr::Ip;
use lb_common::config::{Device, Settings, address};
use lb_common::event::{Hook, Verdict, verdict_counter};
use lb_common::service::Flags;

use super::{Error, beside, list, open, words};
use crate::datapath::{LAYOUT, SOCKET_HOOKS, is_accelerated};
use crate::maps::Maps;
use crate::run::{Known, last_sync};
use crate::syscall::device_name;

/// The screen, as text; and whether all is well.
pub fn status(bpf_dir: &Path, is_verbose: bool) -> Result<(String, bool), Error> {
    let maps = open(bpf_dir)?;
    let known = Known::read(bpf_dir);
    let links = bpf_dir.join(LAYOUT).join("links");
    let mut text = String::new();
    agent(&mut text, &known);
    if let Some(synced) = last_sync(bpf_dir) {
        line(&mut text, "Last sync", &format!("{synced:.0}"));
    }
    let hooks = SOCKET_HOOKS.iter().filter(|hook| links.join(hook).exists()).count();
    line(&mut text, "Pins", &bpf_dir.join(LAYOUT).display().to_string());
    line(&mut text, "Socket hooks", &format!("{hooks} of {} attached", SOCKET_HOOKS.len()));
    devices(&mut text, &maps, &links)?;
    acceleration(&mut text, &known, &maps, &links)?;
    for said in &known.short_cuts {
        line(&mut text, "Short cuts", said);
    }
    if is_verbose {
        beside::attached(&mut text, &maps, &links)?;
        beside::machine(&mut text);
    }
    settings(&mut text, &maps)?;
    services(&mut text, &maps)?;
    packets(&mut text, &maps)?;
    fill(&mut text, &maps)?;
    findings(&mut text, &known);
    let is_well = known.refused.is_empty()
        && known.unwritten.is_empty()
        && known.stale.is_empty()
        && hooks == SOCKET_HOOKS.len();
    Ok((text, is_well))
}

pub(super) fn line(text: &mut String, name: &str, value: &str) {
    if writeln!(text, "{name:<14} {value}").is_err() {
        // Writing to a string cannot fail.
    }
}

fn agent(text: &mut String, known: &Known) {
    let process = |file| std::fs::read_to_string(format!("/proc/{}/{file}", known.pid));
    // A process that ended and was not waited for has a name, but no arguments.
    let is_alive = process("cmdline").is_ok_and(|arguments| !arguments.is_empty());
    let runs = is_alive && process("comm").is_ok_and(|name| name.trim() == "lb-agent");
    let value = if runs {
        format!("running (process {})", known.pid)
    } else {
        "not running; packets are served as it left them".to_owned()
    };
    line(text, "Agent", &value);
    if !known.node.is_empty() {
        line(text, "Node", &known.node);
    }
    for (resource, since) in &known.stale {
        line(text, "Stale", &format!("{resource} {since}"));
    }
}

fn devices(text: &mut String, maps: &Maps, links: &Path) -> Result<(), Error> {
    let mut devices = maps.devices()?;
    devices.sort_by_key(|(index, device)| (device.flags & Device::LOCAL_CLIENTS, *index));
    for (index, device) in devices {
        let role = if device.flags & Device::LOCAL_CLIENTS == 0 { "external" } else { "pod" };
        let is_attached = ["ingress", "egress"]
            .iter()
            .all(|direction| links.join(format!("{index}-{direction}")).exists());
        let name = device_name(index).unwrap_or_else(|| format!("#{index}"));
        let state = if is_attached { "attached" } else { "NOT attached" };
        let sources: Vec<String> = [device.source4, device.source6]
            .into_iter()
            .filter(|ip| *ip != Ip::UNSPECIFIED)
            .map(|ip| words::ip(ip).to_string())
            .collect();
        let (sources, choice) = (sources.join(" "), choice(&device));
        line(text, "Device", &format!("{name:<15} {role:<8} {state}  {sources}{choice}"));
    }
    Ok(())
}

/// Where sources are not only these: the device has addresses of several networks.
const fn choice(device: &Device) -> &'static str {
    match (device.flags & Device::SOURCES4 != 0, device.flags & Device::SOURCES6 != 0) {
        (false, false) => "",
        (true, false) => " (IPv4: or as the route says, it has several networks)",
        (false, true) => " (IPv6: or as the route says, it has several networks)",
        (true, true) => " (or as the route says, it has several networks)",
    }
}

/// Devices to the outside that XDP serves before tc does, whether it sends by them, and why it does not serve the others.
fn acceleration(text: &mut String, known: &Known, maps: &Maps, links: &Path) -> Result<(), Error> {
    for (index, device) in maps.devices()? {
        let Some(name) = device_name(index) else { continue };
        let why = known.acceleration.get(&name).filter(|why| !why.is_empty());
        if is_accelerated(links, index) {
            let sends = match why {
                _ if device.flags & Device::TAKES_FRAMES != 0 => "sends out itself".to_owned(),
                Some(why) => format!("hands on: {why}"),
                None => "hands on".to_owned(),
            };
            line(text, "XDP", &format!("{name:<15} attached, {sends}"));
        } else if device.flags & Device::LOCAL_CLIENTS == 0 {
            let why = why.map_or("the agent has not tried yet", String::as_str);
            line(text, "XDP", &format!("{name:<15} not attached: {why}"));
        }
    }
    Ok(())
}

fn settings(text: &mut String, maps: &Maps) -> Result<(), Error> {
    let settings = maps.settings()?;
    line(text, "Mode", &mode(&settings));
    let mut accepting: Vec<String> = maps
        .addresses()?
        .into_iter()
        .filter(|(_, bits)| bits & address::NODE_PORTS != 0)
        .map(|(ip, _)| words::ip(ip).to_string())
        .collect();
    accepting.sort();
    line(text, "NodePorts on", &accepting.join(" "));
    let (low, high) = (settings.source_port_low.get(), settings.source_port_high.get());
    line(text, "Source ports", &format!("{low}-{high}"));
    let sockets = match settings.socket_mode {
        Settings::SOCKETS_OFF => "none",
        Settings::SOCKETS_HOST => "of the host",
        _ => "of all namespaces",
    };
    line(text, "Sockets", sockets);
    Ok(())
}

/// Whose source is translated, and how pods are told from others (contract 3.3, 3.4).
fn mode(settings: &Settings) -> String {
    let masquerade = if !settings.has(Settings::MASQUERADE_KUBE_PROXY) {
        "edge"
    } else if settings.has(Settings::MASQUERADE_ALL) {
        "kube-proxy, masqueradeAll"
    } else {
        "kube-proxy"
    };
    let pods = if settings.has(Settings::NO_DETECTOR) {
        "not told from others".to_owned()
    } else if settings.has(Settings::LOCAL_BY_PREFIX) {
        let set = settings.local.iter().filter(|prefix| prefix.mask != Ip::UNSPECIFIED);
        let prefixes: Vec<String> = set.map(words::prefix).collect();
        format!("told by their prefix: {}", prefixes.join(" "))
    } else if settings.has(Settings::LOCAL_BY_DEVICE) {
        "told by the devices that detectLocal names".to_owned()
    } else {
        "told by their devices".to_owned()
    };
    format!("masquerade {masquerade}; pods are {pods}")
}

fn services(text: &mut String, maps: &Maps) -> Result<(), Error> {
    let services = maps.services()?;
    let count =
        |is: fn(Flags) -> bool| services.iter().filter(|(_, service)| is(service.flags)).count();
    let leaving = count(|flags| flags.has(Flags::LEAVING));
    let frontends = count(|flags| !flags.has(Flags::ADDRESS) && !flags.has(Flags::LEAVING));
    let served = list::backends(maps, &services)?;
    let rows = maps.backends()?.iter().filter(|row| row.service != 0).count();
    let left = match rows.saturating_sub(served) {
        0 => String::new(),
        left => format!(" ({left} more have left)"),
    };
    let value = format!("{frontends} frontends, {served} backends{left}, {leaving} leaving");
    line(text, "Services", &value);
    Ok(())
}

fn packets(text: &mut String, maps: &Maps) -> Result<(), Error> {
    let counters = maps.counters()?;
    let sum = |verdict: Verdict| -> u64 {
        let hooks = Hook::ALL.iter().map(|hook| verdict_counter(*hook, verdict));
        hooks.filter_map(|index| counters.get(index as usize)).sum()
    };
    for class in ["translated", "turned_round", "sent", "drop"] {
        let of_class = Verdict::all().filter(|verdict| verdict.class() == class);
        let counted: Vec<String> = of_class
            .map(|verdict| (verdict.name(), sum(verdict)))
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let value = if counted.is_empty() { "-".to_owned() } else { counted.join(", ") };
        line(
            text,
            &format!("Packets {}", if class == "turned_round" { "turned" } else { class }),
            &value,
        );
    }
    Ok(())
}

fn fill(text: &mut String, maps: &Maps) -> Result<(), Error> {
    for (map, used, room) in maps.fill()? {
        let percent = used as u64 * 100 / u64::from(room.max(1));
        line(text, "Map", &format!("{map:<10} {used:>8} of {room:>8}  {percent:>3} %"));
    }
    Ok(())
}

fn findings(text: &mut String, known: &Known) {
    for (port, map) in &known.refused {
        line(text, "Refused", &format!("{port}: {map} is full; raise it with --map-size {map}=N"));
    }
    for (port, why) in &known.unwritten {
        line(text, "Not written", &format!("{port}: {why}; tried again every second"));
    }
    for device in &known.doubtful {
        let remedy = "say with --external-device or --pod-device";
        line(text, "In doubt", &format!("{device} is served as a pod's device: {remedy}"));
    }
    for problem in &known.problems {
        line(text, "Problem", problem);
    }
    for (frontend, ports) in &known.conflicts {
        if let Some((winner, losers)) = ports.split_first() {
            let losers = losers.join(", ");
            line(
                text,
                "Conflict",
                &format!("{frontend}: {winner} has it, asked for by {losers} too"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::config::Prefix;

    use super::*;

    #[test]
    fn a_device_says_in_which_family_its_route_chooses() {
        let of = |flags| choice(&Device { flags, ..Device::default() });
        assert_eq!(of(Device::LOCAL_CLIENTS | Device::PEER), "");
        assert!(of(Device::SOURCES4).starts_with(" (IPv4: or as the route says"));
        assert!(of(Device::SOURCES6).starts_with(" (IPv6: or as the route says"));
        assert!(of(Device::SOURCES4 | Device::SOURCES6).starts_with(" (or as the route says"));
    }

    #[test]
    fn the_mode_names_every_way_to_tell_pods_from_others() {
        let of = |flags| mode(&Settings { flags, ..Settings::default() });
        assert_eq!(of(0), "masquerade edge; pods are told by their devices");
        let all = Settings::MASQUERADE_KUBE_PROXY | Settings::MASQUERADE_ALL;
        assert_eq!(
            of(all | Settings::NO_DETECTOR),
            "masquerade kube-proxy, masqueradeAll; pods are not told from others"
        );
        assert_eq!(
            of(Settings::MASQUERADE_KUBE_PROXY | Settings::LOCAL_BY_DEVICE),
            "masquerade kube-proxy; pods are told by the devices that detectLocal names"
        );
        let mask = Ip::v6([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let six = Prefix { ip: Ip::v6([0xfd; 16]), mask };
        let settings = Settings {
            flags: Settings::LOCAL_BY_PREFIX,
            local: [Prefix::default(), six],
            ..Settings::default()
        };
        assert_eq!(
            mode(&settings),
            "masquerade edge; pods are told by their prefix: fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd/48"
        );
    }
}
