# lease.pl - holds a lease on a file, so that a command that opens it waits; for tests of what happens meanwhile.
#
# Called by tests: perl tests/lease.pl FILE MARKER. MARKER.held says that the lease is held, MARKER that a process waits
# in open. Exit code 3: the file system has no leases. Ends when it is killed.
use strict;
use warnings;

my ($file, $marker) = @ARGV;
open my $f, '+<', $file or die "$file: $!\n";
$SIG{IO} = sub { open my $m, '>', $marker };
defined fcntl($f, 1024, 1) or exit 3; # F_SETLEASE, F_WRLCK
open my $m, '>', "$marker.held" or die "$marker.held: $!\n";
sleep 1 while 1;
