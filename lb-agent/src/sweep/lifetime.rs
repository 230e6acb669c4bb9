//! How long an idle flow is kept (contract 3.11, after netfilter's and kube-proxy's defaults).

use std::time::Duration;

use lb_common::addr::Protocol;
use lb_common::flow::state::{ESTABLISHED, FIN, RST};

/// A connection that was never completed.
const OPENING: Duration = Duration::from_mins(1);
/// A connection met in its middle, of which only one direction was seen.
const ONE_WAY: Duration = Duration::from_mins(5);
/// A connection that both closed or one reset.
const CLOSED: Duration = Duration::from_secs(10);

/// The lifetimes that can be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// A datagram flow that was never answered.
    pub unreplied: Duration,
    /// A datagram flow that was.
    pub stream: Duration,
    /// An open connection.
    pub open: Duration,
    /// A connection that one side closed.
    pub half_closed: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            unreplied: Duration::from_secs(30),
            stream: Duration::from_mins(2),
            open: Duration::from_hours(24),
            half_closed: Duration::from_hours(1),
        }
    }
}

/// The lifetime of an idle flow, given what each direction has shown.
pub(super) fn lifetime(of: &Lifetimes, protocol: Protocol, forward: u8, reply: u8) -> Duration {
    let (any, both) = (forward | reply, forward & reply);
    if protocol != Protocol::TCP {
        return if both & ESTABLISHED == 0 { of.unreplied } else { of.stream };
    }
    if any & RST != 0 || both & FIN != 0 {
        CLOSED
    } else if any & FIN != 0 {
        of.half_closed
    } else if both & ESTABLISHED != 0 {
        of.open
    } else if forward & ESTABLISHED != 0 {
        ONE_WAY
    } else {
        OPENING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_follow_the_connection() {
        let of = Lifetimes::default();
        let tcp = |forward, reply| lifetime(&of, Protocol::TCP, forward, reply);
        assert_eq!(tcp(0, 0), OPENING);
        assert_eq!(tcp(0, ESTABLISHED), OPENING, "a SYN-ACK, never acknowledged");
        assert_eq!(tcp(ESTABLISHED, ESTABLISHED), of.open);
        assert_eq!(tcp(ESTABLISHED | FIN, ESTABLISHED), of.half_closed);
        assert_eq!(tcp(ESTABLISHED | FIN, ESTABLISHED | FIN), CLOSED);
        assert_eq!(tcp(ESTABLISHED, RST), CLOSED);
        assert_eq!(tcp(ESTABLISHED, 0), ONE_WAY);
        assert_eq!(lifetime(&of, Protocol::UDP, ESTABLISHED, 0), of.unreplied);
        assert_eq!(lifetime(&of, Protocol::SCTP, ESTABLISHED, ESTABLISHED), of.stream);
    }
}
