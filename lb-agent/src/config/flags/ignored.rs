//! kube-proxy's flags without a meaning here: accepted in each spelling, named in a warning, and left out of `--help`.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// The ignored flags that were given.
#[derive(Clone, Debug, Default)]
pub struct IgnoredFlags(pub Vec<&'static str>);

/// Name of the flag, and whether it takes no value.
const IGNORED: [(&str, bool); 31] = [
    ("boot-id-file", false),
    ("config-sync-period", false),
    ("conntrack-max-per-core", false),
    ("conntrack-min", false),
    ("conntrack-tcp-be-liberal", true),
    ("iptables-masquerade-bit", false),
    ("iptables-min-sync-period", false),
    ("ipvs-exclude-cidrs", false),
    ("ipvs-min-sync-period", false),
    ("ipvs-scheduler", false),
    ("ipvs-strict-arp", true),
    ("ipvs-sync-period", false),
    ("ipvs-tcp-timeout", false),
    ("ipvs-tcpfin-timeout", false),
    ("ipvs-udp-timeout", false),
    ("kube-api-burst", false),
    ("kube-api-content-type", false),
    ("kube-api-qps", false),
    ("log-flush-frequency", false),
    ("log-json-info-buffer-size", false),
    ("log-json-split-stream", true),
    ("log-text-info-buffer-size", false),
    ("log-text-split-stream", true),
    ("machine-id-file", false),
    ("nftables-masquerade-bit", false),
    ("nftables-min-sync-period", false),
    ("nftables-sync-period", false),
    ("profiling", true),
    ("proxy-mode", false),
    ("show-hidden-metrics-for-version", false),
    ("vmodule", false),
];

impl Args for IgnoredFlags {
    fn augment_args(cmd: Command) -> Command {
        IGNORED.iter().fold(cmd, |cmd, (name, alone)| {
            let arg = Arg::new(*name).long(*name).hide(true).action(ArgAction::Append);
            let arg = if *alone {
                // A boolean of Go's flag syntax takes its value only after `=`.
                arg.num_args(0..=1).require_equals(true).default_missing_value("true")
            } else {
                arg.allow_hyphen_values(true)
            };
            cmd.arg(arg)
        })
    }

    fn augment_args_for_update(cmd: Command) -> Command {
        Self::augment_args(cmd)
    }
}

impl FromArgMatches for IgnoredFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = IGNORED.iter().map(|(name, _)| *name);
        Ok(Self(names.filter(|name| matches.contains_id(name)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
