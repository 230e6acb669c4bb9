//! How long an idle flow is kept (contract 3.11, after netfilter's and kube-proxy's defaults).

use std::time::Duration;

use lb_common::addr::Protocol;
use lb_common::flow::state::{ESTABLISHED, FIN, RST};

/// A datagram flow that was never answered.
const UNREPLIED: Duration = Duration::from_secs(30);
/// A datagram flow that was.
const STREAM: Duration = Duration::from_secs(120);
/// A connection that was never completed.
const OPENING: Duration = Duration::from_secs(60);
/// A connection met in its middle, of which only one direction was seen.
const ONE_WAY: Duration = Duration::from_secs(300);
/// An open connection.
const OPEN: Duration = Duration::from_hours(24);
/// A connection that one side closed.
const HALF_CLOSED: Duration = Duration::from_hours(1);
/// A connection that both closed or one reset.
const CLOSED: Duration = Duration::from_secs(10);

/// The lifetime of an idle flow, given what each direction has shown.
pub(super) fn lifetime(protocol: Protocol, forward: u8, reply: u8) -> Duration {
    let (any, both) = (forward | reply, forward & reply);
    if protocol != Protocol::TCP {
        return if both & ESTABLISHED == 0 { UNREPLIED } else { STREAM };
    }
    if any & RST != 0 || both & FIN != 0 {
        CLOSED
    } else if any & FIN != 0 {
        HALF_CLOSED
    } else if both & ESTABLISHED != 0 {
        OPEN
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
        let tcp = |forward, reply| lifetime(Protocol::TCP, forward, reply);
        assert_eq!(tcp(0, 0), OPENING);
        assert_eq!(tcp(0, ESTABLISHED), OPENING, "a SYN-ACK, never acknowledged");
        assert_eq!(tcp(ESTABLISHED, ESTABLISHED), OPEN);
        assert_eq!(tcp(ESTABLISHED | FIN, ESTABLISHED), HALF_CLOSED);
        assert_eq!(tcp(ESTABLISHED | FIN, ESTABLISHED | FIN), CLOSED);
        assert_eq!(tcp(ESTABLISHED, RST), CLOSED);
        assert_eq!(tcp(ESTABLISHED, 0), ONE_WAY);
        assert_eq!(lifetime(Protocol::UDP, ESTABLISHED, 0), UNREPLIED);
        assert_eq!(lifetime(Protocol::SCTP, ESTABLISHED, ESTABLISHED), STREAM);
    }
}
