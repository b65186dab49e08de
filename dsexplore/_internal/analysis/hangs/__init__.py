"""Why a job hangs: what each rank waits for, where the ranks parted, and which of them did not come."""
